#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/poller.h"
#include "base/socket.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// Looks names up without waiting for name servers: on a thread for each look-up, which ends by itself. A
/// destroyed or restarted resolver forgets one that is under way. One thread's.
class Resolver {
 public:
  using Addresses = std::vector<SocketAddress>;

  static Result<Resolver> Create();
  /// Numeric addresses are there at once. Errors: kExhausted, no thread.
  Status Start(const std::string& host, uint16_t port);
  /// Readable when Take has something.
  [[nodiscard]] int fd() const { return shared_->wake.fd(); }
  /// The outcome, once; nullopt while it is under way.
  std::optional<Result<Addresses>> Take();
  void Forget();

 private:
  struct Shared {
    std::mutex mutex;
    WakeFd wake;
    uint64_t wanted = 0;  ///< The number of the look-up that still matters.
    std::optional<Result<Addresses>> outcome;
    void Finish(uint64_t number, Result<Addresses> found);
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace weightcast::stream
