#include "control/update_recorder.h"

#include <algorithm>
#include <utility>

#include "base/wall_clock.h"
#include "control/roster_facts.h"

namespace weightcast::control {
namespace {

constexpr size_t kMostNames = 4;        ///< Epochs whose workers' last spans may still come.
constexpr size_t kMostIntervals = 256;  ///< Orders, and stalls, of the last updates.

protocol::WorkerName WorkerNameOf(const MachineState& state, SessionId session) {
  const Worker* worker = state.roster.Find(session);
  return worker == nullptr ? protocol::WorkerName{} : NameOf(state.roster, *worker);
}

std::vector<std::string> TextsOf(const MachineState& state, const std::vector<SessionId>& sessions) {
  std::vector<std::string> names;
  names.reserve(sessions.size());
  for (const SessionId session : sessions) names.push_back(protocol::ToString(WorkerNameOf(state, session)));
  return names;
}

SourceTimeline& SourceOf(UpdateTimeline& timeline, const std::string& name) {
  const auto at = std::ranges::find(timeline.sources, name, &SourceTimeline::name);
  if (at != timeline.sources.end()) return *at;
  return timeline.sources.emplace_back(SourceTimeline{.name = name});
}

size_t SpansOf(const UpdateTimeline& timeline) {
  size_t count = 0;
  for (const auto& source : timeline.sources) count += source.sendings.size();
  for (const auto& rank : timeline.ranks) count += rank.spans.size();
  return count;
}

}  // namespace

const UpdateRecorder::Names& UpdateRecorder::NamesOf(const MachineState& state) {
  if (names_.empty() || names_.back().epoch != state.plan.epoch) {
    names_.push_back({.epoch = state.plan.epoch,
                      .sources = TextsOf(state, state.plan.sources),
                      .destinations = TextsOf(state, state.plan.destinations)});
    if (names_.size() > kMostNames) names_.pop_front();
  }
  return names_.back();
}

RankTimeline* UpdateRecorder::RankOf(SessionId session) {
  if (!open_) return nullptr;
  const auto at = open_->ranks.find(session);
  return at == open_->ranks.end() ? nullptr : &open_->timeline.ranks[at->second];
}

RankTimeline::Part* UpdateRecorder::PartOf(SessionId session, const protocol::UpdateId& update,
                                           uint32_t part) {
  RankTimeline* rank = IsOf(update) ? RankOf(session) : nullptr;
  return rank == nullptr || part >= rank->parts.size() ? nullptr : &rank->parts[part];
}

void UpdateRecorder::Started(SessionId source, TimePoint at) {
  const auto entry = open_->sources.find(source);
  if (entry == open_->sources.end()) return;
  double& started = open_->timeline.sources[entry->second].started;
  if (started == kNever) started = Since(at);
}

// --- What is heard --------------------------------------------------------------------------------------

void UpdateRecorder::Received(SessionId from, const protocol::WorkerMessage& message,
                              const MachineState& state, TimePoint at) {
  if (const auto* published = std::get_if<protocol::Published>(&message)) {
    published_[from] = {protocol::ToString(WorkerNameOf(state, from)), published->number, at};
  } else if (const auto* result = std::get_if<protocol::EngineCommandResult>(&message)) {
    for (Order& order : orders_)
      if (order.session == from && order.number == result->order) order.answered = at;
  } else if (const auto* spans = std::get_if<protocol::Spans>(&message)) {
    Take(from, *spans, state);
  } else if (const auto* granted = std::get_if<protocol::Granted>(&message)) {
    if (auto* part = PartOf(from, granted->update, granted->part)) part->granted = Since(at);
  } else if (const auto* ready = std::get_if<protocol::Ready>(&message)) {
    auto* part = PartOf(from, ready->update, ready->part);
    if (part == nullptr) return;
    part->ready = Since(at);
    const Names& names = NamesOf(state);
    RankTimeline& rank = *RankOf(from);
    rank.routes.clear();
    for (const protocol::SourceBytes& source : ready->sources) {
      if (source.source >= names.sources.size() || rank.routes.size() == kMostSpans) continue;
      rank.routes.push_back({names.sources[source.source], source.bytes, source.seconds});
    }
  } else if (const auto* committed = std::get_if<protocol::Committed>(&message)) {
    if (RankTimeline* rank = IsOf(committed->update) ? RankOf(from) : nullptr) rank->committed = Since(at);
  } else if (const auto* serving = std::get_if<protocol::Serving>(&message)) {
    if (RankTimeline* rank = IsOf(serving->update) ? RankOf(from) : nullptr) rank->serving = Since(at);
  }
}

void UpdateRecorder::Sent(SessionId to, const protocol::ControllerMessage& message, const MachineState& state,
                          TimePoint at) {
  if (const auto* request = std::get_if<protocol::GrantRequest>(&message)) {
    if (!IsOf(request->update)) OpenUpdate(*request, state, at);
    UpdateTimeline& timeline = open_->timeline;
    timeline.id = request->update;
    const auto [entry, added] = open_->ranks.try_emplace(to, timeline.ranks.size());
    if (added) {
      const protocol::WorkerName name = WorkerNameOf(state, to);
      timeline.ranks.push_back({.name = protocol::ToString(name), .engine = name.engine});
    }
    RankTimeline& rank = timeline.ranks[entry->second];
    rank.parts.resize(request->part + 1);  // Another attempt begins with part 0 again.
    rank.parts.back() = {.asked = Since(at)};
  } else if (const auto* start = std::get_if<protocol::Start>(&message)) {
    for (const protocol::DestinationGrant& grant : start->grants) {
      if (grant.destination >= state.plan.destinations.size()) continue;
      const SessionId rank = state.plan.destinations[grant.destination];
      if (auto* part = PartOf(rank, start->update, start->part)) part->started = Since(at);
    }
    if (IsOf(start->update)) Started(to, at);
  } else if (const auto* commit = std::get_if<protocol::Commit>(&message)) {
    if (RankTimeline* rank = IsOf(commit->update) ? RankOf(to) : nullptr) rank->committing = Since(at);
  } else if (const auto* serve = std::get_if<protocol::Serve>(&message)) {
    if (RankTimeline* rank = IsOf(serve->update) ? RankOf(to) : nullptr) rank->serve = Since(at);
  } else if (const auto* done = std::get_if<protocol::Done>(&message)) {
    if (!IsOf(done->update)) return;
    open_->timeline.done = Since(at);
    open_->timeline.met_policy = done->met_policy;
    open_->timeline.reason = done->reason.message();
  } else if (const auto* command = std::get_if<protocol::EngineCommand>(&message)) {
    const Group* group = state.roster.ControlledBy(to);
    if (group == nullptr) return;
    orders_.push_back({.session = to,
                       .number = command->order,
                       .time = {.engine = group->name, .command = command->command},
                       .asked = at,
                       .answered = {}});
    if (orders_.size() > kMostIntervals) orders_.pop_front();
  }
}

/// Spans tell of an update that may be over. It is explained again when somebody asks: not once for each
/// worker.
void UpdateRecorder::Take(SessionId from, const protocol::Spans& spans, const MachineState& state) {
  const std::string name = protocol::ToString(WorkerNameOf(state, from));
  if (IsOf(spans.update)) {
    NamesOf(state);
    return AddSpans(open_->timeline, name, spans);
  }
  const auto meant = [&](const protocol::UpdateId& id) {
    return id.term == spans.update.term && id.sequence == spans.update.sequence;
  };
  auto told = std::ranges::find_if(told_, meant, &UpdateTimeline::id);
  if (told == told_.end()) {
    const auto past =
        std::ranges::find_if(history_, [&](const auto& one) { return meant(one->timeline.id); });
    if (past == history_.end()) return;
    told = told_.insert(told_.end(), (*past)->timeline);
  }
  AddSpans(*told, name, spans);
}

const Explanations& UpdateRecorder::history() {
  for (UpdateTimeline& timeline : std::exchange(told_, {})) {
    const auto past =
        std::ranges::find_if(history_, [&](const auto& one) { return one->timeline.id == timeline.id; });
    if (past == history_.end()) continue;
    *past =
        std::make_shared<const Explained>(Explain(std::move(timeline), Explanations(history_.begin(), past)));
    Changed(*past);
  }
  return history_;
}

Explanations UpdateRecorder::TakeChanged() {
  history();
  return std::exchange(changed_, {});
}

void UpdateRecorder::Changed(std::shared_ptr<const Explained> explained) {
  changed_.push_back(std::move(explained));
  if (changed_.size() > kMostUpdates) changed_.erase(changed_.begin());
}

void UpdateRecorder::AddSpans(UpdateTimeline& timeline, const std::string& name,
                              const protocol::Spans& spans) const {
  const auto names = std::ranges::find(names_, spans.update.epoch, &Names::epoch);
  const auto rank = std::ranges::find(timeline.ranks, name, &RankTimeline::name);
  size_t room = kMostSpans - std::min(kMostSpans, SpansOf(timeline));
  for (const protocol::Span& span : spans.spans) {
    if (room-- == 0) return;
    if (span.peer < 0 && rank != timeline.ranks.end()) {
      rank->spans.push_back(span);
    } else if (span.peer < 0) {  // A trainer has waited for its Start.
      const auto source = std::ranges::find(timeline.sources, name, &SourceTimeline::name);
      if (source != timeline.sources.end() && span.kind == protocol::SpanKind::kGate)
        source->waited = span.seconds;
    } else if (names != names_.end() && static_cast<size_t>(span.peer) < names->destinations.size()) {
      SourceOf(timeline, name)
          .sendings.push_back({names->destinations[static_cast<size_t>(span.peer)], span});
    }
  }
}

void UpdateRecorder::Stalled(TimePoint from, TimePoint until) {
  if (!open_ && !awaited_) return;
  stalls_.push_back({from, until});
  if (stalls_.size() > kMostIntervals) stalls_.pop_front();
}

// --- Beginning and end ----------------------------------------------------------------------------------

void UpdateRecorder::OpenUpdate(const protocol::GrantRequest& request, const MachineState& state,
                                TimePoint at) {
  if (open_) Close(at);
  const bool again = request.version == last_;  // Held for engines that came later.
  last_ = request.version;
  Open& open = open_.emplace();
  open.timeline.model = model_;
  open.timeline.version = request.version;
  open.timeline.id = request.update;
  open.began = at;
  std::erase_if(published_, [&](const auto& one) { return state.roster.Find(one.first) == nullptr; });
  for (const auto& [session, publication] : published_)
    if (!again && publication.number == request.version.number)
      open.began = std::min(open.began, publication.at);
  for (const auto& [session, publication] : published_) {
    if (again || publication.number != request.version.number) continue;
    SourceTimeline& source = SourceOf(open.timeline, publication.name);
    source.published = Since(publication.at);
    open.sources[session] = static_cast<size_t>(&source - open.timeline.sources.data());
  }
  open.timeline.opened = Since(at);
  open.timeline.began_unix_ms =
      (UnixMicroseconds() - std::chrono::floor<std::chrono::microseconds>(at - open.began).count()) / 1000;
  NamesOf(state);
}

void UpdateRecorder::Look(const MachineState& state, TimePoint now) {
  awaited_ = state.roster.offers().waiting() != 0;
  if (open_ && (!state.updates.open || state.updates.open->id.sequence != open_->timeline.id.sequence))
    Close(now);
}

void UpdateRecorder::Close(TimePoint now) {
  UpdateTimeline& timeline = open_->timeline;
  for (const Order& order : orders_) {
    if (order.asked < open_->began) continue;
    CommandTime& time = timeline.commands.emplace_back(order.time);
    time.asked = Since(order.asked);
    if (order.answered) time.answered = Since(*order.answered);
  }
  for (const Interval& stall : stalls_) {
    if (stall.until > open_->began)
      timeline.stalls.push_back({Since(std::max(stall.from, open_->began)),
                                 Seconds(stall.until - std::max(stall.from, open_->began))});
  }
  std::erase_if(orders_, [](const Order& order) { return order.answered.has_value(); });
  if (timeline.done == kNever) timeline.done = Since(now);
  // Nobody waited for the outcome of a version that was held: it went well where somebody serves it.
  const auto serves = [](const RankTimeline& rank) { return rank.serving != kNever; };
  if (timeline.reason.empty() && std::ranges::any_of(timeline.ranks, serves)) timeline.met_policy = true;
  const Explanations& before = history();
  history_.push_back(std::make_shared<const Explained>(Explain(std::move(timeline), before)));
  Changed(history_.back());
  if (history_.size() > kMostUpdates) history_.erase(history_.begin());
  open_.reset();
}

}  // namespace weightcast::control
