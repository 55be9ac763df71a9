#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/poller.h"
#include "base/socket.h"
#include "stream/connection.h"
#include "stream/keys.h"
#include "stream/resolver.h"
#include "stream/tls.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// Finds the controller at the addresses of a name: the first that proves to be it. Another is tried 250 ms
/// after the one before, or once that has failed, so that neither silence nor an impostor at one address
/// hides the controller at the next. One thread's; no call blocks.
class Connector {
 public:
  static constexpr size_t kMostAddresses = 16;

  struct Options {
    std::string host;
    uint16_t port = 0;
    uint32_t version = 0;
    ClientKeys keys;
    size_t most_queued = 0;
  };
  static Result<std::unique_ptr<Connector>> Create();
  ~Connector();
  /// Forgets what was under way.
  void Start(Options options);
  /// The same at addresses that are known: those of the options' host.
  void StartAt(Options options, std::vector<SocketAddress> addresses);
  void Cancel();

  /// Readable when Step has work.
  [[nodiscard]] int fd() const { return poller_.fd(); }
  /// When it has work without that.
  [[nodiscard]] TimePoint deadline() const;
  using Outcome = Result<std::unique_ptr<Connection>>;
  /// The connection to the controller, or why there is none at any address: kPermission, kProtocol or
  /// kUnavailable. Once; nullopt while it tries.
  std::optional<Outcome> Step();

 private:
  struct Attempt {
    SocketAddress address;
    UniqueFd fd;  ///< While it connects.
    std::unique_ptr<Connection> connection;
  };
  using AttemptMap = std::map<uint64_t, Attempt>;
  Connector() = default;
  Status Prepare(Options options);
  void TakeAddresses();
  void ConnectAll(std::vector<SocketAddress> addresses);
  void ConnectNext();
  void Connect(const SocketAddress& address);
  /// nullopt while it is under way.
  std::optional<Status> Advance(Attempt& attempt, uint64_t key);
  Status Greet(Attempt& attempt, uint64_t key);
  void End(AttemptMap::iterator at);
  void Failed(const Status& reason);
  std::optional<Outcome> Finished();

  Poller poller_;
  Resolver resolver_;
  Options options_;
  std::optional<TlsContext> context_;
  bool resolving_ = false;
  std::vector<SocketAddress> left_;  ///< In reverse.
  TimePoint next_ = kNever;
  AttemptMap attempts_;
  uint64_t next_key_ = 1;
  Status failure_;  ///< The most telling one.
};

}  // namespace weightcast::stream
