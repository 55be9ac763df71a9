#include "control/verdict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "weightcast/settings.h"

namespace weightcast::control {
namespace {

using protocol::Span;

/// An update is slow when it took longer than the third quartile of those before it by three times the
/// distance between the quartiles (Tukey's far-out fence), twice their median, ...
constexpr double kFence = 3;
constexpr double kTwice = 2;
/// ... and longer than their median by more than a process may stand still without noticing it (its stall
/// watch, and the controller's): whose doing a shorter time was is chance.
constexpr double kUnnoticed = 0.05;
/// Of the time by which it has grown, its cause has to have taken so much: what has grown everywhere has no
/// one cause. Two causes of the same size have nearly half each.
constexpr double kLeastOfGrowth = 0.4;
/// A route, or the runs that it consists of, are called slow or small where they have less than half ...
constexpr double kHalf = 0.5;
/// ... or where a write carries less than a sixteenth of what it might.
constexpr double kSixteenth = 1.0 / 16;
/// Routes beside the slow one that are needed for a comparison.
constexpr size_t kLeastOthers = 2;

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - static_cast<double>(below));
}

/// "0.81", "0.0042": three digits.
std::string Short(double value) {
  if (value == 0) return "0";
  const double scale = std::pow(10, 2 - std::floor(std::log10(std::abs(value))));
  return StrCat(std::round(value * scale) / scale);
}
std::string RateText(double bytes_per_second) { return StrCat(HumanBytes(bytes_per_second), "/s"); }

double RateOf(const Span& write) {
  const double seconds = write.seconds - write.stalled;
  return seconds > 0 ? static_cast<double>(write.bytes) / seconds : 0;
}

double SecondsOf(const std::vector<Cost>& costs, Cause cause) {
  double sum = 0;
  for (const Cost& cost : costs) sum += cost.cause == cause ? cost.seconds : 0;
  return sum;
}

/// What is said of a cause.
struct CauseTexts {
  Cause cause;
  /// After whose doing it was (nobody's name for the controller's own); before who waited, if it ends in a
  /// space. Empty: RouteText.
  std::string_view what;
  std::string_view remedy;
};

constexpr CauseTexts kCauseTexts[] = {
    {Cause::kLateTrainer, " published after the others, or its streams were not done",
     "even out the trainers' steps; announce the version earlier"},
    {Cause::kController, "the controller was busy or did not run", "give the controller a core of its own"},
    {Cause::kOpening, "it waited for a plan, or for the update before it",
     "join engines between updates; publish less often than an update takes"},
    {Cause::kLateEngine, " let the update wait: its engine had not paused, or came late",
     "shorten the engine's pause, or use shadow landing"},
    {Cause::kMemoryLent, " waited until others had read its memory",
     "let engines that join late come between updates"},
    {Cause::kStopped, " did not run or did not answer",
     "look whether the process was stopped or its host is overloaded"},
    {Cause::kSender, " was busy with other destinations before ",
     "use more trainers as sources, or more cores for them"},
    {Cause::kSlowDisk, " read its checkpoint, and nothing was on its way to ",
     "use a faster disk, or publish from memory"},
    {Cause::kSlowCast, " cast or gathered tensors, and nothing was on its way to ",
     "give the trainer more cores, or publish in the engines' dtype and layout"},
    {Cause::kLink, "",
     "look at this link: rate, errors, other traffic; else it is as fast as the link allows"},
    {Cause::kSmallChunks, "", "raise the setting chunk"},
    {Cause::kTinyTensors, "", "fuse small tensors, or shard so that rows stay whole"},
    {Cause::kLaneDown, "", "look in the log why the lane failed"},
    {Cause::kFence, " opened and closed its memory for the update",
     "look for slow memory registration in the log"},
    {Cause::kVerify, " compared what had arrived",
     "set checksum and compare to 0 where the network is trusted"},
    {Cause::kSwitch, " switched to the new version", "shorten on_switch and post-processing"}};
static_assert(std::ranges::all_of(kCauseTexts, [](const CauseTexts& one) {
  return &one == &kCauseTexts[static_cast<size_t>(one.cause)];
}));
static_assert(std::size(kCauseTexts) == static_cast<size_t>(Cause::kSwitch) + 1);

const CauseTexts& TextsOf(Cause cause) { return kCauseTexts[static_cast<size_t>(cause)]; }

class Judge {
 public:
  Judge(const Explained& update, const Explanations& before) : update_(update) {
    for (const auto& one : before) {
      if (one->timeline.met_policy && one->seconds > 0) before_.push_back(one.get());
    }
  }

  Verdict Run() {
    Verdict verdict;
    verdict.history = before_.size();
    if (update_.costs.empty()) {
      verdict.text = "nothing is known of it: it ended before an engine took part";
      verdict.remedy = "see its reason";
      return verdict;
    }
    const Cost* cost = SlowByHistory(verdict);
    if (cost == nullptr) cost = SlowByOthers(verdict);
    if (cost == nullptr) cost = &update_.costs.front();
    verdict.worker = cost->worker;
    verdict.victim = cost->victim;
    verdict.seconds = cost->seconds;
    verdict.share = cost->seconds / update_.seconds;
    verdict.cause = cost->cause == Cause::kLink ? KindOfLink(*cost) : cost->cause;
    if (Judged()) verdict.usual = UsualOf(cost->cause);
    verdict.text = Text(verdict);
    verdict.remedy = TextsOf(verdict.cause).remedy;
    return verdict;
  }

 private:
  [[nodiscard]] bool Judged() const { return before_.size() >= kLeastHistory; }
  [[nodiscard]] double UsualOf(Cause cause) const {
    std::vector<double> seconds;
    for (const Explained* one : before_) seconds.push_back(SecondsOf(one->costs, cause));
    return Quantile(std::move(seconds), 0.5);
  }

  /// Of the updates before. Those that were called slow do not count while they are fewer than half: else a
  /// few of them would hide the next one. If they are more, the update has changed for good.
  [[nodiscard]] std::vector<double> UsualTotals() const {
    std::vector<double> all;
    std::vector<double> usual;
    for (const Explained* one : before_) {
      all.push_back(one->seconds);
      if (!one->verdict.slow) usual.push_back(one->seconds);
    }
    return 2 * usual.size() > all.size() ? usual : all;
  }

  /// Seconds by which the whole update has grown beyond what updates usually take; 0: it has not.
  [[nodiscard]] double Growth() const {
    if (!Judged()) return 0;
    const std::vector<double> totals = UsualTotals();
    const double high = Quantile(totals, 0.75);
    const double usual = Quantile(totals, 0.5);
    if (update_.seconds <= high + kFence * (high - Quantile(totals, 0.25))) return 0;
    if (update_.seconds <= std::max(kTwice * usual, usual + kUnnoticed)) return 0;
    return update_.seconds - usual;
  }

  /// The cost that has grown most, if it explains why the update has grown.
  const Cost* SlowByHistory(Verdict& verdict) const {
    const double growth = Growth();
    if (growth == 0) return nullptr;
    const Cost* worst = nullptr;
    double most = 0;
    for (const Cost& cost : update_.costs) {
      const double excess = cost.seconds - UsualOf(cost.cause);
      if (worst != nullptr && excess <= most) continue;
      worst = &cost;
      most = excess;
    }
    if (most < kLeastOfGrowth * growth) return nullptr;
    verdict.slow = true;
    return worst;
  }

  /// A route that takes most of the update, and has for some time been at less than half of the others' rate.
  const Cost* SlowByOthers(Verdict& verdict) const {
    const Cost& first = update_.costs.front();
    if (!Judged() || first.cause != Cause::kLink || first.seconds < kHalf * update_.seconds) return nullptr;
    size_t slow = 0;
    const size_t from = before_.size() - kLeastHistory;
    for (size_t i = from; i < before_.size(); ++i)
      slow += BehindOthers(before_[i]->timeline, first.worker, first.victim) ? 1 : 0;
    if (slow < kLeastHistory || !BehindOthers(update_.timeline, first.worker, first.victim)) return nullptr;
    verdict.slow = true;
    return &first;
  }

  static std::vector<double> OtherRates(const UpdateTimeline& update, std::string_view source,
                                        std::string_view rank) {
    std::vector<double> rates;
    for (const SourceTimeline& one : update.sources) {
      for (const auto& [to, span] : one.sendings) {
        if (span.kind != protocol::SpanKind::kWrite || (one.name == source && to == rank)) continue;
        if (RateOf(span) > 0) rates.push_back(RateOf(span));
      }
    }
    return rates;
  }
  static bool BehindOthers(const UpdateTimeline& update, std::string_view source, std::string_view rank) {
    const std::vector<double> others = OtherRates(update, source, rank);
    const double rate = RateOf(WriteOf(update, source, rank));
    return others.size() >= kLeastOthers && rate > 0 && rate < kHalf * Quantile(others, 0.5);
  }

  /// The best that was seen of this route, or beside it.
  [[nodiscard]] double BestRate(const Cost& cost) const {
    double best = RateOf(WriteOf(update_.timeline, cost.worker, cost.victim));
    for (const double rate : OtherRates(update_.timeline, cost.worker, cost.victim))
      best = std::max(best, rate);
    for (const Explained* one : before_)
      best = std::max(best, RateOf(WriteOf(one->timeline, cost.worker, cost.victim)));
    return best;
  }

  /// The last span of this route in an earlier update that went as it usually does.
  [[nodiscard]] std::optional<Span> Earlier(const Cost& cost) const {
    for (size_t i = before_.size(); i-- > 0;) {
      const Span span = WriteOf(before_[i]->timeline, cost.worker, cost.victim);
      if (span.bytes > 0 && !before_[i]->verdict.slow) return span;
    }
    return std::nullopt;
  }

  [[nodiscard]] Cause KindOfLink(const Cost& cost) const {
    const Span span = WriteOf(update_.timeline, cost.worker, cost.victim);
    if (span.bytes == 0 || span.chunk == 0) return Cause::kLink;
    const std::optional<Span> earlier = Earlier(cost);
    uint32_t lanes = earlier ? earlier->lanes : 0;
    for (const Explained* one : before_)
      lanes = std::max(lanes, WriteOf(one->timeline, cost.worker, cost.victim).lanes);
    if (span.lanes > 0 && span.lanes < lanes) return Cause::kLaneDown;
    const auto run = [](const Span& of) {
      return static_cast<double>(of.bytes) / static_cast<double>(std::max<uint64_t>(of.pieces, 1));
    };
    // What was so before, and faster, is not the reason.
    if (earlier && run(*earlier) <= run(span) / kHalf && earlier->chunk <= span.chunk &&
        RateOf(span) < kHalf * RateOf(*earlier))
      return Cause::kLink;
    if (static_cast<double>(span.chunk) < kSixteenth * static_cast<double>(Settings().chunk))
      return Cause::kSmallChunks;
    if (run(span) < kSixteenth * static_cast<double>(span.chunk)) return Cause::kTinyTensors;
    return Cause::kLink;
  }

  [[nodiscard]] std::string Text(const Verdict& verdict) const {
    const std::string times = StrCat(Short(verdict.seconds), " of ", Short(update_.seconds), " s: ");
    const std::string what = What(verdict);
    if (verdict.slow) return StrCat(times, what);
    return StrCat("bounded by ", NameOf(verdict.cause), ", ", times, what, Basis());
  }

  [[nodiscard]] std::string Basis() const {
    if (!Judged()) return StrCat(" (a history of ", before_.size(), " is too short to call it slow or not)");
    const double growth = Growth();
    return growth == 0
               ? ""
               : StrCat(" (", Short(growth), " s longer than usual, but no one cause accounts for it)");
  }

  [[nodiscard]] std::string RouteText(const Verdict& verdict) const {
    const Cost cost{.cause = Cause::kLink, .worker = verdict.worker, .victim = verdict.victim};
    const Span span = WriteOf(update_.timeline, verdict.worker, verdict.victim);
    const double best = BestRate(cost);
    if (span.bytes == 0 || best <= 0) return StrCat("bytes from ", verdict.worker, " to ", verdict.victim);
    const double bytes = static_cast<double>(span.bytes);
    std::string text =
        StrCat(verdict.victim, " received ", HumanBytes(bytes), " from ", verdict.worker, " at ",
               RateText(RateOf(span)), ", ", Short(RateOf(span) / best), " of the best rate seen");
    if (verdict.cause == Cause::kSmallChunks) text += StrCat(", in chunks of ", span.chunk, " bytes");
    if (verdict.cause == Cause::kTinyTensors)
      text += StrCat(", in ", span.pieces, " runs of ", static_cast<uint64_t>(bytes) / span.pieces,
                     " bytes each");
    if (verdict.cause == Cause::kLaneDown) text += StrCat(", with a lane down (", span.path, ")");
    return text;
  }

  [[nodiscard]] std::string What(const Verdict& verdict) const {
    const std::string_view what = TextsOf(verdict.cause).what;
    if (what.empty()) return RouteText(verdict);
    return StrCat(verdict.worker, what, what.ends_with(' ') ? verdict.victim : "");
  }

  const Explained& update_;
  std::vector<const Explained*> before_;
};

}  // namespace

Explained Explain(UpdateTimeline timeline, const Explanations& before) {
  Explained explained{.timeline = std::move(timeline), .path = {}, .costs = {}, .verdict = {}};
  explained.path = CriticalPath(explained.timeline);
  explained.costs = CostsOf(explained.path);
  for (const Segment& segment : explained.path) explained.seconds += segment.seconds;
  explained.verdict = Judge(explained, before).Run();
  return explained;
}

}  // namespace weightcast::control
