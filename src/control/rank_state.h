#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "control/update_words.h"
#include "protocol/messages.h"

namespace weightcast::control {

struct Receiver {
  SessionId session = 0;
  GroupId group = 0;
  uint32_t rank = 0;  ///< Kept here: the worker may have left gracefully before the update is over.
  uint32_t destination = 0;
  protocol::UpdateId id = {};  ///< Of the attempt that fills it; none yet if its sequence is 0.
  RankStep step = RankStep::kAsked;
  bool started = false;                            ///< Some source was told of its grants.
  bool compares = false;                           ///< It wants the digests of its sources.
  std::vector<protocol::SourceGrant> grants = {};  ///< Until the sources are told.
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t compared = 0;
  std::vector<Route> routes = {};  ///< Once ready.
  friend bool operator==(const Receiver&, const Receiver&) = default;
};

/// The rule of ranks': control/rank_rule.h. With counts that are kept as the update goes on, so that no event
/// has to look at all its ranks.
struct RanksState {
  std::vector<Receiver> receivers;  ///< Of one engine next to each other.

  /// Once, when all are there.
  void Index();
  Receiver* Of(SessionId session);  ///< nullptr: it takes no part.
  std::span<Receiver> RanksOf(GroupId engine);
  /// Whether all ranks of the engine have come so far.
  [[nodiscard]] bool AllAt(GroupId engine, RankStep step) const;
  void Move(Receiver& rank, RankStep step);

  friend bool operator==(const RanksState&, const RanksState&) = default;

 private:
  struct Counts {
    GroupId engine = 0;
    uint32_t first = 0;  ///< In `receivers`.
    uint32_t ranks = 0;
    std::array<uint32_t, 6> steps = {};  ///< How many are at each RankStep.
    friend bool operator==(const Counts&, const Counts&) = default;
  };
  [[nodiscard]] const Counts* CountsOf(GroupId engine) const;

  std::vector<Counts> engines_;  ///< By group.
  std::vector<uint32_t> by_session_;
};

}  // namespace weightcast::control
