#include "control/grpc_channel.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "base/strings.h"
#include "control/grpc_common.h"

namespace weightcast::control {
namespace {

/// With one address, and with name servers: a quarter of what the client gives a try, two seconds or a lease.
int PatienceMilliseconds(Duration lease) {
  const auto quarter = std::chrono::duration_cast<std::chrono::milliseconds>(lease / 4).count();
  return static_cast<int>(std::clamp<int64_t>(quarter, 500, 20'000));
}

/// With the last channel goes gRPC's event engine, and the next one needs descriptors: gRPC 1.51 ends the
/// process where there are none. So one channel stays that never dials.
void KeepEventEngine() {
  // Used: as far as a leak checker sees, it is no leak.
  [[gnu::used]] static const auto* kept =
      new auto(grpc::CreateChannel("unix:nobody", grpc::InsecureChannelCredentials()));
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, Duration lease) {
  TakeGrpcLog();
  KeepEventEngine();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // A proxy for the web is no way to a controller.
  // Both sides bound what they take by wire/limits.h; a view may be larger than a piece.
  arguments.SetMaxReceiveMessageSize(64 << 20);
  arguments.SetMaxSendMessageSize(-1);
  // A compressed message could be a thousand times as large as what comes over the network.
  arguments.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, KeepaliveMilliseconds(lease));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KeepaliveTimeoutMilliseconds(lease));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // gRPC would give each address of the name twenty seconds: one that is silent must not hide the next.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, PatienceMilliseconds(lease));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, PatienceMilliseconds(lease));
  // And name servers that are silent about one family must not hide what the hosts file says of the other.
  arguments.SetInt(GRPC_ARG_DNS_ARES_QUERY_TIMEOUT_MS, PatienceMilliseconds(lease));
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
    case grpc::StatusCode::FAILED_PRECONDITION:
      return {Code::kProtocol,
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
