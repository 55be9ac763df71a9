#pragma once

#include <string_view>
#include <variant>

#include "protocol/controller_messages.h"
#include "protocol/view.h"
#include "protocol/worker_messages.h"

/// What workers and the controller say to each other: the words of docs/protocol.md as plain structs. The
/// protocol's state machines and their model checker use these; docs/wire.md says how they are encoded.
namespace weightcast::protocol {

using WorkerMessage = std::variant<Hello, Register, LandingMap, Prepared, Published, Granted, Ready,
                                   Committed, Serving, Aborted, Failed, Suspended, EngineCommandResult,
                                   Cancel, Heartbeat, Leave, AskOffered, SentDigests, Spans>;

using ControllerMessage =
    std::variant<Welcome, Refused, Plan, PeerLanding, Superseded, GrantRequest, Start, Commit, Serve, Stop,
                 Abort, Release, Done, Lost, EngineCommand, Controlled, Heartbeat, Offered, SourceDigests>;

/// "Hello", "GrantRequest", ...
inline std::string_view NameOf(const WorkerMessage& message) {
  return std::visit([](const auto& what) { return TypeName<decltype(what)>(); }, message);
}
inline std::string_view NameOf(const ControllerMessage& message) {
  return std::visit([](const auto& what) { return TypeName<decltype(what)>(); }, message);
}

/// kProtocol, with what to do, unless a worker of this version is one of ours. 0: of before version 3.
Status CheckProtocol(uint32_t version);

}  // namespace weightcast::protocol
