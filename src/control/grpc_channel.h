#pragma once

#include <memory>
#include <string>

#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace grpc {
class Channel;
class Status;
}  // namespace grpc

namespace weightcast::control {

/// A channel of its own, so that the name is resolved again and no back-off of another is inherited.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, Duration lease);

/// gRPC's outcome as ours: kPermission for a wrong token, kProtocol for what is no controller or one of
/// another version, otherwise
/// kUnavailable, naming the address and what to check.
Status FromGrpc(const grpc::Status& status, const std::string& address);

}  // namespace weightcast::control
