#pragma once

#include <string>
#include <string_view>

#include "protocol/messages.h"
#include "protocol/observer_messages.h"
#include "weightcast/status.h"

/// Messages as bytes: docs/wire.md, "Control plane". Decoders take bytes that may be hostile. Errors:
/// kProtocol, naming message and field. The memory that a decoder allocates is at most kMaxExpansion times
/// its input; each message has one encoding, and no other bytes are taken for it.
namespace weightcast::protocol {

std::string Encode(const WorkerMessage& message);
std::string Encode(const ControllerMessage& message);
std::string Encode(const ObserverMessage& message);
std::string Encode(const ObserverReply& message);

/// Of a Hello of another version only `protocol` is read: for CheckProtocol.
Result<WorkerMessage> DecodeWorkerMessage(std::string_view bytes);
Result<ControllerMessage> DecodeControllerMessage(std::string_view bytes);
Result<ObserverMessage> DecodeObserverMessage(std::string_view bytes);
Result<ObserverReply> DecodeObserverReply(std::string_view bytes);

/// An empty string takes a byte on the wire and 32 in memory, and lists may be announced within lists.
inline constexpr size_t kMaxExpansion = 64;

}  // namespace weightcast::protocol
