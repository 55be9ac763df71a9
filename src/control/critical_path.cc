#include "control/critical_path.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace weightcast::control {
namespace {

using protocol::Span;
using protocol::SpanKind;

/// Seconds of the given kinds, and of these in which the process did not run.
struct Sum {
  double seconds = 0;
  double stalled = 0;
};
/// part: of that alone.
Sum SumOf(const std::vector<Span>& spans, SpanKind kind, std::optional<size_t> part = std::nullopt) {
  Sum sum;
  for (const Span& span : spans) {
    if (span.kind != kind || span.part != part.value_or(span.part)) continue;
    sum.seconds += span.seconds;
    sum.stalled += span.stalled;
  }
  return sum;
}

/// What rounding leaves of a difference.
constexpr double kNothing = 1e-12;

double Overlap(double begin, double end, double from, double until) {
  return std::max(0.0, std::min(end, until) - std::max(begin, from));
}

/// Shares a step's time out, never more than there is.
class Shares {
 public:
  /// stalled: seconds of the step in which the controller did not run.
  Shares(Segment& segment, std::string victim, double stalled)
      : segment_(segment), victim_(std::move(victim)), stalled_(stalled) {}

  [[nodiscard]] double left() const { return left_; }
  void Take(Cause cause, const std::string& worker, double seconds) {
    Push({.cause = cause, .worker = worker, .victim = victim_, .seconds = seconds});
  }
  void Take(Cause cause, const std::string& worker, const Sum& sum) {
    Take(Cause::kStopped, worker, std::min(sum.stalled, sum.seconds));
    Take(cause, worker, sum.seconds - std::min(sum.stalled, sum.seconds));
  }
  /// A controller that does not run hears late what has come in time. So its stalls come before all that only
  /// its own clock tells, and behind what workers have measured.
  void TakeStalls() {
    Push({.cause = Cause::kController, .worker = {}, .victim = {}, .seconds = std::exchange(stalled_, 0)});
  }
  void TakeRest(Cause cause, const std::string& worker) {
    TakeStalls();
    Take(cause, worker, left_);
  }

 private:
  void Push(Cost cost) {
    cost.seconds = std::min(cost.seconds, left_);
    if (cost.seconds < kNothing) return;
    left_ -= cost.seconds;
    segment_.costs.push_back(std::move(cost));
  }

  Segment& segment_;
  const std::string victim_;
  double left_ = segment_.seconds;
  double stalled_;
};

/// The way back from the end.
class Walk {
 public:
  explicit Walk(const UpdateTimeline& update) : update_(update) {}

  std::vector<Segment> Run() {
    if (const RankTimeline* last = Latest([](const RankTimeline& rank) { return rank.serving; })) {
      at_ = last->serving;
      Serve(*last);
    } else if (const RankTimeline* ready = Latest(LastReady)) {
      at_ = LastReady(*ready);
      Receive(*ready);
    } else if (const RankTimeline* granted = Latest(LastGranted)) {
      at_ = LastGranted(*granted);
      Grant(*granted, granted->parts.size() - 1);
    }
    std::ranges::reverse(path_);
    return std::move(path_);
  }

 private:
  static double LastReady(const RankTimeline& rank) {
    return rank.parts.empty() ? kNever : rank.parts.back().ready;
  }
  static double LastGranted(const RankTimeline& rank) {
    return rank.parts.empty() ? kNever : rank.parts.back().granted;
  }

  /// The rank with the greatest time that is not after `limit`; of one engine, or of any if that is empty.
  template <typename Time>
  const RankTimeline* Latest(const Time& time, const std::string& engine = {}, double limit = 1e300) const {
    const RankTimeline* latest = nullptr;
    for (const RankTimeline& rank : update_.ranks) {
      if (!engine.empty() && rank.engine != engine) continue;
      if (time(rank) == kNever || time(rank) > limit) continue;
      if (latest == nullptr || time(rank) > time(*latest)) latest = &rank;
    }
    return latest;
  }

  /// From `begin` to where the path stands.
  Segment& Add(PathStep step, const std::string& worker, double begin) {
    begin = std::clamp(begin, 0.0, at_);
    path_.push_back({.step = step, .worker = worker, .begin = begin, .seconds = at_ - begin, .costs = {}});
    at_ = begin;
    return path_.back();
  }
  /// Seconds of these in which the controller did not run.
  [[nodiscard]] double Stalled(double begin, double end) const {
    double sum = 0;
    for (const StallTime& stall : update_.stalls)
      sum += Overlap(begin, end, stall.begin, stall.begin + stall.seconds);
    return sum;
  }
  [[nodiscard]] Shares SharesOf(Segment& segment, std::string victim) const {
    return {segment, std::move(victim), Stalled(segment.begin, segment.begin + segment.seconds)};
  }
  /// The controller's own, but for what an EngineControl takes.
  void AddOwn(PathStep step, const std::string& engine, double begin, Cause cause) {
    Segment& segment = Add(step, {}, begin);
    Shares shares = SharesOf(segment, engine.empty() ? "" : "engine " + engine);
    shares.TakeStalls();
    for (const CommandTime& command : update_.commands) {
      if (command.engine != engine || command.answered == kNever) continue;
      shares.Take(Cause::kLateEngine, "the control of engine " + engine,
                  Overlap(segment.begin, segment.begin + segment.seconds, command.asked, command.answered));
    }
    shares.TakeRest(cause, {});
  }

  void Serve(const RankTimeline& rank) {
    Segment& serve = Add(PathStep::kServe, rank.name, rank.serve == kNever ? at_ : rank.serve);
    SharesOf(serve, rank.name).TakeRest(Cause::kStopped, rank.name);
    const RankTimeline* last =
        Latest([](const RankTimeline& one) { return one.committed; }, rank.engine, at_);
    if (last == nullptr) return Add(PathStep::kDecide, {}, 0), void();
    AddOwn(PathStep::kDecide, rank.engine, last->committed, Cause::kController);
    Commit(*last);
  }

  void Commit(const RankTimeline& rank) {
    Segment& segment = Add(PathStep::kCommit, rank.name, rank.committing == kNever ? at_ : rank.committing);
    Shares shares = SharesOf(segment, "engine " + rank.engine);
    shares.Take(Cause::kLateEngine, rank.name, SumOf(rank.spans, SpanKind::kCall));
    shares.Take(Cause::kSwitch, rank.name, SumOf(rank.spans, SpanKind::kSwitch));
    shares.Take(Cause::kSwitch, rank.name, SumOf(rank.spans, SpanKind::kProcess));
    shares.TakeRest(Cause::kStopped, rank.name);
    // By policy all engines may have been waited for.
    const RankTimeline* last = Latest(LastReady, {}, at_);
    if (last == nullptr) return;
    AddOwn(PathStep::kDecide, rank.engine, LastReady(*last), Cause::kController);
    Receive(*last);
  }

  void Receive(const RankTimeline& rank) {
    for (size_t part = rank.parts.size(); part-- > 0;) {
      const RankTimeline::Part& times = rank.parts[part];
      ReceivePart(rank, times, part + 1 == rank.parts.size());
      const RankTimeline* granted = Latest(
          [part](const RankTimeline& one) {
            return part < one.parts.size() ? one.parts[part].granted : kNever;
          },
          {}, at_);
      if (granted == nullptr) return;
      AddOwn(PathStep::kStart, {}, granted->parts[part].granted, Cause::kController);
      if (part == 0) return Grant(*granted, 0);
      GrantOnly(*granted, part);
      AddOwn(PathStep::kHandOver, {}, rank.parts[part - 1].ready, Cause::kController);
    }
  }

  /// The rank's figures are of all parts: they go to the last.
  void ReceivePart(const RankTimeline& rank, const RankTimeline::Part& times, bool last) {
    Segment& segment = Add(PathStep::kReceive, rank.name, times.started == kNever ? at_ : times.started);
    Shares shares = SharesOf(segment, rank.name);
    if (last) {
      shares.Take(Cause::kFence, rank.name, SumOf(rank.spans, SpanKind::kFence));
      shares.Take(Cause::kVerify, rank.name, SumOf(rank.spans, SpanKind::kVerify));
    }
    Route(shares, rank);
  }

  void Route(Shares& shares, const RankTimeline& rank) {
    const RouteTime* route = LastRoute(rank);
    std::vector<Span> sent;
    for (const SourceTimeline& source : update_.sources) {
      if (route == nullptr || source.name != route->source) continue;
      for (const auto& sending : source.sendings)
        if (sending.to == rank.name) sent.push_back(sending.span);
    }
    if (sent.empty()) return shares.TakeRest(Cause::kLink, route == nullptr ? rank.name : route->source);
    double told = 0;
    for (const Span& span : sent) told += span.seconds;
    // A receiver that did not run shows behind the sending (it looks late), or inside (nobody reads).
    const double stalled = SumOf(rank.spans, SpanKind::kReceive).stalled;
    const double behind = std::min(stalled, std::max(0.0, shares.left() - told));
    Sum write = SumOf(sent, SpanKind::kWrite);
    const double inside = std::min(stalled - behind, write.seconds);
    write.seconds -= inside;
    write.stalled = std::min(write.stalled, write.seconds);
    shares.Take(Cause::kStopped, rank.name, behind + inside);
    shares.Take(Cause::kLateTrainer, route->source, SumOf(sent, SpanKind::kGate));
    // What waited for its turn while bytes for others were made waited for that.
    const Sum turn = SumOf(sent, SpanKind::kTurn);
    const double cast = std::min(turn.seconds, ForOthers(*route, rank, SpanKind::kStage));
    const double read = std::min(turn.seconds - cast, ForOthers(*route, rank, SpanKind::kRead));
    shares.Take(Cause::kSlowDisk, route->source, read);
    shares.Take(Cause::kSlowCast, route->source, cast);
    shares.Take(Cause::kSender, route->source, turn.seconds - cast - read);
    shares.Take(Cause::kSlowDisk, route->source, SumOf(sent, SpanKind::kRead));
    shares.Take(Cause::kSlowCast, route->source, SumOf(sent, SpanKind::kStage));
    shares.Take(Cause::kLink, route->source, write);
    shares.TakeRest(Cause::kStopped, route->source);
  }

  /// What the source of this route spent on what it sent to others.
  [[nodiscard]] double ForOthers(const RouteTime& route, const RankTimeline& rank, SpanKind kind) const {
    double sum = 0;
    for (const SourceTimeline& source : update_.sources) {
      if (source.name != route.source) continue;
      for (const auto& [to, span] : source.sendings)
        sum += to != rank.name && span.kind == kind ? span.seconds : 0;
    }
    return sum;
  }

  void GrantOnly(const RankTimeline& rank, size_t part) {
    const double asked = rank.parts[part].asked;
    Segment& segment = Add(PathStep::kGrant, rank.name, asked == kNever ? at_ : asked);
    Shares shares = SharesOf(segment, "engine " + rank.engine);
    shares.Take(Cause::kLateEngine, rank.name, SumOf(rank.spans, SpanKind::kPause, part));
    shares.Take(Cause::kMemoryLent, rank.name, SumOf(rank.spans, SpanKind::kReclaim, part));
    shares.Take(Cause::kFence, rank.name, SumOf(rank.spans, SpanKind::kOpen, part));
    shares.TakeRest(Cause::kStopped, rank.name);
  }

  void Grant(const RankTimeline& rank, size_t part) {
    GrantOnly(rank, part);
    const SourceTimeline* last = nullptr;
    double heard = 0;
    for (const SourceTimeline& source : update_.sources) {
      if (source.published == kNever || source.published > at_) continue;
      if (last == nullptr || PublishedAt(source) > PublishedAt(*last)) last = &source;
      heard = std::max(heard, source.published);
    }
    AddOwn(PathStep::kOpen, rank.engine, heard, Cause::kOpening);
    if (last == nullptr) return;
    Segment& publish = Add(PathStep::kPublish, last->name, 0);
    // Until it published it was late, whether the controller ran or not.
    Shares(publish, {}, Stalled(MeasuredAt(*last), heard)).TakeRest(Cause::kLateTrainer, last->name);
  }

  /// When a source published by its own measure: so long before it was told to send. Without it: at any time.
  static double MeasuredAt(const SourceTimeline& source) {
    if (source.started == kNever || source.waited == kNever) return 0;
    return std::clamp(source.started - source.waited, 0.0, source.published);
  }
  /// Where the controller ran, it heard it at once.
  [[nodiscard]] double PublishedAt(const SourceTimeline& source) const {
    const double measured = MeasuredAt(source);
    return Stalled(measured, source.published) > 0 ? measured : source.published;
  }

  const UpdateTimeline& update_;
  double at_ = 0;
  std::vector<Segment> path_;
};

}  // namespace

std::string_view NameOf(Cause cause) {
  static constexpr std::array<std::string_view, 16> kNames = {
      "late_trainer", "busy_controller", "opening",   "late_engine", "memory_lent",  "stopped",
      "sender",       "slow_disk",       "slow_cast", "link",        "small_chunks", "tiny_tensors",
      "lane_down",    "fence",           "verify",    "switch"};
  return kNames[static_cast<size_t>(cause)];
}

std::string_view NameOf(PathStep step) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "publish", "open", "grant", "start", "receive", "hand_over", "commit", "decide", "serve"};
  return kNames[static_cast<size_t>(step)];
}

std::vector<Segment> CriticalPath(const UpdateTimeline& update) { return Walk(update).Run(); }

std::vector<Cost> CostsOf(const std::vector<Segment>& path) {
  std::vector<Cost> costs;
  for (const Segment& segment : path) {
    for (const Cost& cost : segment.costs) {
      const auto same = std::ranges::find_if(costs, [&](const Cost& known) {
        return known.cause == cost.cause && known.worker == cost.worker && known.victim == cost.victim;
      });
      if (same == costs.end()) {
        costs.push_back(cost);
      } else {
        same->seconds += cost.seconds;
      }
    }
  }
  std::ranges::stable_sort(costs, [](const Cost& a, const Cost& b) { return a.seconds > b.seconds; });
  return costs;
}

const RouteTime* LastRoute(const RankTimeline& rank) {
  const auto last = std::ranges::max_element(rank.routes, {}, &RouteTime::seconds);
  return last == rank.routes.end() ? nullptr : &*last;
}

protocol::Span WriteOf(const UpdateTimeline& update, std::string_view source, std::string_view rank) {
  protocol::Span sum{.kind = SpanKind::kWrite};
  for (const SourceTimeline& one : update.sources) {
    if (one.name != source) continue;
    for (const auto& [to, span] : one.sendings) {
      if (to != rank || span.kind != SpanKind::kWrite) continue;
      sum.seconds += span.seconds;
      sum.stalled += span.stalled;
      sum.bytes += span.bytes;
      sum.pieces += span.pieces;
      sum.chunk = span.chunk;
      sum.lanes = span.lanes;
      sum.path = span.path;
    }
  }
  return sum;
}

}  // namespace weightcast::control
