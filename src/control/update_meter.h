#pragma once

#include "control/page_state.h"
#include "protocol/messages.h"
#include "trace/metrics.h"

namespace weightcast::control {

/// Of one model: the times of its open update, and what the last one says of its bytes.
struct UpdateClock {
  protocol::UpdateId update;
  TimePoint began;
  std::optional<TimePoint> ready;
  std::vector<std::pair<std::string, double>> moments;  ///< As in UpdateRecord.
  protocol::UpdateId measured;                          ///< The last that was counted.
  std::vector<protocol::RankBytes> senders;             ///< Of the last update.
  std::vector<protocol::RouteBytes> routes;             ///< Likewise.
};

/// Measures updates: for Done, the metrics and the page. Belongs to the thread wc-controller.
class UpdateMeter {
 public:
  /// `page`: gets a record of each update; nullptr: there is none.
  explicit UpdateMeter(std::shared_ptr<PageState> page) : page_(std::move(page)) {}

  /// Before the message is sent. Fills in Done.seconds: the machine has no clock.
  void Measure(const std::string& model, UpdateClock& clock, protocol::ControllerMessage& message);

 private:
  void MeasureEnd(const std::string& model, UpdateClock& clock, protocol::Done& done);

  const std::shared_ptr<PageState> page_;
  trace::Counter& bytes_ = trace::CounterNamed("control.bytes");
  trace::Timing& updates_ = trace::TimingNamed("control.update");
};

}  // namespace weightcast::control
