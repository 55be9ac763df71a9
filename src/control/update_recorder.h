#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "control/machine_state.h"
#include "control/verdict.h"
#include "protocol/messages.h"
#include "weightcast/clock.h"

namespace weightcast::control {

/// Updates of which a controller remembers what they took, of each model.
inline constexpr size_t kMostUpdates = 200;
/// Spans that are kept of one update.
inline constexpr size_t kMostSpans = 4096;

/// Records what is sent between a model's machine and its workers, and makes a timeline of each update. It
/// changes nothing: the protocol does not know of it. One thread's.
class UpdateRecorder {
 public:
  explicit UpdateRecorder(std::string model) : model_(std::move(model)) {}

  /// Before the machine handles it. `at`: when it had arrived.
  void Received(SessionId from, const protocol::WorkerMessage& message, const MachineState& state,
                TimePoint at);
  /// As it is sent.
  void Sent(SessionId to, const protocol::ControllerMessage& message, const MachineState& state,
            TimePoint at);
  /// After each step of the machine.
  void Look(const MachineState& state, TimePoint now);
  /// The controller did not run between these.
  void Stalled(TimePoint from, TimePoint until);

  /// An update is under way.
  [[nodiscard]] bool open() const { return open_.has_value(); }
  /// A trainer has published, and its update has not begun.
  [[nodiscard]] bool awaited() const { return awaited_; }
  /// Explains first what spans have come for since the last call.
  const Explanations& history();
  /// What has been explained, or explained again, since the last call.
  Explanations TakeChanged();

 private:
  /// Who has which number in the table of an epoch.
  struct Names {
    uint32_t epoch = 0;
    std::vector<std::string> sources;
    std::vector<std::string> destinations;
  };
  struct Publication {
    std::string name;
    int64_t number = -1;
    TimePoint at;
  };
  struct Order {
    SessionId session = 0;
    uint64_t number = 0;
    CommandTime time;
    TimePoint asked;
    std::optional<TimePoint> answered;
  };
  struct Interval {
    TimePoint from;
    TimePoint until;
  };
  struct Open {
    UpdateTimeline timeline;
    TimePoint began;
    std::unordered_map<SessionId, size_t> ranks;
    std::unordered_map<SessionId, size_t> sources;  ///< That have published.
  };

  void OpenUpdate(const protocol::GrantRequest& request, const MachineState& state, TimePoint at);
  void Close(TimePoint now);
  void Take(SessionId from, const protocol::Spans& spans, const MachineState& state);
  void Changed(std::shared_ptr<const Explained> explained);
  void AddSpans(UpdateTimeline& timeline, const std::string& name, const protocol::Spans& spans) const;
  const Names& NamesOf(const MachineState& state);
  RankTimeline* RankOf(SessionId session);
  void Started(SessionId source, TimePoint at);
  RankTimeline::Part* PartOf(SessionId session, const protocol::UpdateId& update, uint32_t part);
  [[nodiscard]] double Since(TimePoint at) const { return Seconds(at - open_->began); }
  [[nodiscard]] bool IsOf(const protocol::UpdateId& update) const {
    return open_ && open_->timeline.id.sequence == update.sequence;
  }

  const std::string model_;
  std::optional<Open> open_;
  bool awaited_ = false;
  std::unordered_map<SessionId, Publication> published_;
  std::deque<Names> names_;
  std::deque<Order> orders_;
  std::deque<Interval> stalls_;
  Version last_;
  Explanations history_;
  std::vector<UpdateTimeline> told_;  ///< Of the history, with spans that have come since.
  Explanations changed_;              ///< For TakeChanged: the last kMostUpdates.
};

}  // namespace weightcast::control
