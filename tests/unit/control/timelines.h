#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/strings.h"
#include "control/timeline.h"

/// Updates as a controller might have seen them.
namespace weightcast::control {

/// What an update is made of, so that a test can make one of these long.
struct Lengths {
  double publish = 0.001;
  double open = 0.001;
  double pause = 0.001;
  double messages = 0.0005;
  double gate = 0.0002;
  double turn = 0.0003;
  double stage = 0.002;
  double write = 0.01;
  double fence = 0.0004;
  double verify = 0.0006;
  double call = 0.001;
  double switching = 0.002;
};
struct Who {
  size_t rank = 0;
  size_t source = 0;
  double Lengths::* what = nullptr;
  double seconds = 0;
};

inline constexpr size_t kRanks = 3;
inline constexpr size_t kSources = 2;

inline std::string RankName(size_t rank) { return StrCat("engine e", rank, " rank 0"); }
inline std::string SourceName(size_t source) { return StrCat("trainer ", source); }

/// An update of three engines of one rank and two trainers, each at each step as late as its lengths say.
inline UpdateTimeline MadeOf(std::mt19937& random, const std::vector<Who>& all_late) {
  std::uniform_real_distribution<double> noise(0.8, 1.25);
  const auto length = [&](double Lengths::* what, size_t rank, size_t source) {
    const bool of_source = what == &Lengths::publish || what == &Lengths::gate || what == &Lengths::turn ||
                           what == &Lengths::stage || what == &Lengths::write;
    double seconds = Lengths().*what * noise(random);
    for (const Who& late : all_late) {
      const bool is_late = what == late.what && (!of_source || source == late.source) &&
                           (what == &Lengths::publish || rank == late.rank);
      seconds += is_late ? late.seconds : 0;
    }
    return seconds;
  };
  UpdateTimeline update{.model = "m", .met_policy = true};
  const bool late_publish = std::ranges::find(all_late, &Lengths::publish, &Who::what) != all_late.end();
  double published = 0;
  for (size_t source = 0; source < kSources; ++source) {
    const double at = source == 0 && !late_publish ? 0 : length(&Lengths::publish, 0, source);
    update.sources.push_back({.name = SourceName(source), .published = at});
    published = std::max(published, at);
  }
  const double opened = published + length(&Lengths::open, 0, 0);
  update.opened = opened;
  double all_granted = 0;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    RankTimeline one{.name = RankName(rank), .engine = StrCat("e", rank)};
    const double pause = length(&Lengths::pause, rank, 0);
    one.parts.push_back({.asked = opened, .granted = opened + pause + length(&Lengths::messages, rank, 0)});
    one.spans.push_back({.kind = protocol::SpanKind::kPause, .seconds = pause});
    all_granted = std::max(all_granted, one.parts[0].granted);
    update.ranks.push_back(one);
  }
  double all_ready = 0;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    RankTimeline& one = update.ranks[rank];
    one.parts[0].started = all_granted + 0.0001;
    double sent = 0;
    for (size_t source = 0; source < kSources; ++source) {
      double sum = 0;
      const auto add = [&](protocol::SpanKind kind, double Lengths::* what) {
        protocol::Span span{
            .kind = kind, .peer = static_cast<int64_t>(rank), .seconds = length(what, rank, source)};
        if (kind == protocol::SpanKind::kWrite) {
          span.bytes = span.chunk = 1 << 20;
          span.pieces = 1;
        }
        sum += span.seconds;
        update.sources[source].sendings.push_back({RankName(rank), span});
      };
      add(protocol::SpanKind::kGate, &Lengths::gate);
      add(protocol::SpanKind::kTurn, &Lengths::turn);
      add(protocol::SpanKind::kStage, &Lengths::stage);
      add(protocol::SpanKind::kWrite, &Lengths::write);
      one.routes.push_back({.source = SourceName(source), .bytes = 1 << 20, .seconds = sum});
      sent = std::max(sent, sum);
    }
    const double fence = length(&Lengths::fence, rank, 0);
    const double verify = length(&Lengths::verify, rank, 0);
    one.spans.push_back({.kind = protocol::SpanKind::kReceive, .seconds = sent});
    one.spans.push_back({.kind = protocol::SpanKind::kFence, .seconds = fence});
    one.spans.push_back({.kind = protocol::SpanKind::kVerify, .seconds = verify});
    one.parts[0].ready = one.parts[0].started + sent + fence + verify + length(&Lengths::messages, rank, 0);
    all_ready = std::max(all_ready, one.parts[0].ready);
  }
  for (size_t rank = 0; rank < kRanks; ++rank) {
    RankTimeline& one = update.ranks[rank];
    const double call = length(&Lengths::call, rank, 0);
    const double switching = length(&Lengths::switching, rank, 0);
    one.spans.push_back({.kind = protocol::SpanKind::kCall, .seconds = call});
    one.spans.push_back({.kind = protocol::SpanKind::kSwitch, .seconds = switching});
    one.committing = all_ready + 0.0001;
    one.committed = one.committing + call + switching;
    one.serve = one.committed + 0.0001;
    one.serving = one.serve + length(&Lengths::messages, rank, 0);
  }
  return update;
}

inline UpdateTimeline Made(std::mt19937& random, const Who& late) { return MadeOf(random, {late}); }

}  // namespace weightcast::control
