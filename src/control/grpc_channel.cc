#include "control/grpc_channel.h"

#include <grpcpp/grpcpp.h>

#include "base/strings.h"
#include "control/grpc_common.h"

namespace weightcast::control {

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, Duration lease) {
  QuietGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // A proxy for the web is no way to a controller.
  // Both sides bound what they take by wire/limits.h; a view may be larger than a piece.
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, KeepaliveMilliseconds(lease));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KeepaliveTimeoutMilliseconds(lease));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

Status FromGrpc(const grpc::Status& status, const std::string& address) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return {Code::kUnavailable, StrCat("the controller at ", address, " has closed the stream")};
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return {Code::kPermission,
              StrCat("the controller at ", address, " refuses this process: ", status.error_message())};
    case grpc::StatusCode::UNIMPLEMENTED:
      return {Code::kProtocol, StrCat("what listens at ", address, " is no weightcast controller")};
    default:
      return {Code::kUnavailable,
              StrCat("cannot reach the controller at ", address, " (", status.error_message(),
                     "); check that it runs, the address and the firewall")};
  }
}

}  // namespace weightcast::control
