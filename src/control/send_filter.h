#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "control/session_link.h"
#include "protocol/messages.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// Which of a worker's messages go into its link: none that belongs to a session that is gone. Those before
/// the first session wait for it. Thread safe.
class SendFilter {
 public:
  /// `controller`: its address, for errors.
  SendFilter(std::shared_ptr<SessionLink> link, std::string controller);

  /// Queues or drops a message. Errors: kExhausted, it is too large, or too many wait.
  Status Push(const protocol::WorkerMessage& message);
  /// The controller knows only the Hello. But for the first session, drops what waits, and what comes until
  /// the next Register or Suspended, or EngineCommandResult of order 0.
  void BeginSession();
  /// The session is gone: drops what waits, and what comes until the next one begins.
  void EndSession();
  /// Drops all that comes from now on.
  void Close();

 private:
  enum class Phase : uint8_t {
    kFirst,         ///< Before the first session: keeps all for it.
    kUnregistered,  ///< Waits for a registration.
    kOpen,
    kNoSession,
    kClosed,
  };

  const std::shared_ptr<SessionLink> link_;
  const std::string controller_;
  std::mutex mutex_;
  Phase phase_ = Phase::kFirst;
};

}  // namespace weightcast::control
