#pragma once

#include <string>
#include <string_view>

#include "protocol/types.h"
#include "weightcast/identity.h"

/// How a worker proves who it is (docs/protocol.md, "Identity").
namespace weightcast::protocol {

/// Random bytes that a worker makes when it starts and tells the controller alone.
std::string NewSecret();
/// The incarnation that a secret proves; never 0. Who knows an incarnation does not find its secret.
Incarnation IncarnationOf(std::string_view secret);
/// What `initiator` has to prove to the worker with this secret before it may connect. The controller gives
/// it to those alone whose plan has such a connection.
std::string PairKey(std::string_view secret, const Identity& initiator);

/// A worker as endpoints know it.
std::string_view RoleText(Role role);  ///< "trainer", "inference"
Identity IdentityOf(std::string_view job, const WorkerName& name, Incarnation incarnation);

}  // namespace weightcast::protocol
