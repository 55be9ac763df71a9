#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/poller.h"
#include "base/socket.h"
#include "transport/tcp/greeting.h"
#include "weightcast/clock.h"

namespace weightcast::transport::tcp {

/// Opens one lane from the initiator's side: tries the addresses one after the other, the next one 50 ms
/// after the last or as soon as all so far have failed, until one is welcomed.
class LaneConnector {
 public:
  /// The poller tells readiness under `key` with the attempt's number added.
  LaneConnector(const Poller& poller, uint64_t key, const Greeting& hello, Cookie ours,
                std::vector<SocketAddress> addresses, Duration lease, std::optional<uint8_t> traffic_class);
  LaneConnector(LaneConnector&&) = default;
  ~LaneConnector();

  /// Goes on with what is due.
  void Step(TimePoint now);
  /// This attempt's socket is ready.
  void OnReady(size_t attempt, TimePoint now);
  /// When Step has something to do without a socket's readiness.
  [[nodiscard]] TimePoint NextStep() const { return next_step_; }

  [[nodiscard]] bool welcomed() const { return welcomed_.valid(); }
  /// Every address has failed.
  [[nodiscard]] bool failed() const;
  /// What became of each address so far.
  [[nodiscard]] const std::string& report() const { return report_; }
  /// The welcomed socket, no longer in the poller.
  UniqueFd TakeSocket() { return std::move(welcomed_); }

 private:
  struct Attempt {
    UniqueFd fd;  ///< Invalid: over.
    SocketAddress to;
    bool greeted = false;
    TimePoint give_up;  ///< Once greeted.
    GreetingBytes bytes{};
    size_t got = 0;
  };
  void Start(TimePoint now);
  void Greet(Attempt& attempt, TimePoint now);
  void Listen(Attempt& attempt);
  void GiveUp(Attempt& attempt, std::string_view why);
  void Drop(Attempt& attempt);
  void PlanNextStep();

  const Poller* poller_;
  uint64_t key_;
  Greeting hello_;
  Cookie ours_;
  Duration lease_;
  std::optional<uint8_t> traffic_class_;
  std::vector<SocketAddress> addresses_;
  std::vector<Attempt> attempts_;  ///< One for each address begun, in order.
  TimePoint next_start_;
  TimePoint next_step_;
  UniqueFd welcomed_;
  std::string report_;
};

}  // namespace weightcast::transport::tcp
