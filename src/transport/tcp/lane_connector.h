#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/poller.h"
#include "base/socket.h"
#include "transport/tcp/greeting.h"
#include "transport/tcp/link_shared.h"
#include "weightcast/clock.h"

namespace weightcast::transport::tcp {

/// Opens one lane from the initiator's side: tries the addresses one after the other, the next one 50 ms
/// after the last or as soon as all so far have failed, until one is welcomed.
class LaneConnector {
 public:
  /// The poller tells readiness as KeyKind::kConnect.
  LaneConnector(const Poller& poller, const LinkTerms& terms, uint32_t lane, uint32_t generation);
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
  /// Starts the lane on the welcomed socket, which is no longer in the poller.
  UniqueFd TakeStarted();

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
  void Drop(Attempt& attempt) const;
  void PlanNextStep();

  const Poller& poller_;
  const LinkTerms& terms_;
  uint64_t key_;
  Greeting hello_;
  std::vector<SocketAddress> addresses_;
  std::vector<Attempt> attempts_;  ///< One for each address begun, in order.
  TimePoint next_start_;
  TimePoint next_step_;
  UniqueFd welcomed_;
  std::string report_;
};

}  // namespace weightcast::transport::tcp
