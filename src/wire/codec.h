#pragma once

#include <string>
#include <string_view>

#include "weightcast/status.h"
#include "wire/messages.h"

/// The messages as protobuf bytes (control.proto). Decoders take bytes that may be hostile: before anything
/// is allocated, counts are held against wire/limits.h. Errors: kProtocol, naming message and field.
namespace weightcast::wire {

std::string Encode(const WorkerMessage& message);
std::string Encode(const ControllerMessage& message);
std::string Encode(const ClusterView& view);

Result<WorkerMessage> DecodeWorkerMessage(std::string_view bytes);
Result<ControllerMessage> DecodeControllerMessage(std::string_view bytes);
Result<ClusterView> DecodeClusterView(std::string_view bytes);

/// "Hello", "GrantRequest", ...
std::string_view NameOf(const WorkerMessage& message);
std::string_view NameOf(const ControllerMessage& message);

}  // namespace weightcast::wire
