#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "unit/control/simulator.h"

namespace weightcast::control {

inline const Version kFirst{.run = 1, .number = 1, .origin = 77};

/// A simulated cluster whose workers have all come and got the plan.
struct Cluster : Simulator {
  std::vector<SessionId> trainers;
  std::map<std::string, std::vector<SessionId>> engines;

  void Start(uint32_t trainer_count, const std::map<std::string, uint32_t>& ranks,
             protocol::Landing landing = protocol::Landing::kInPlace) {
    for (uint32_t rank = 0; rank < trainer_count; ++rank)
      trainers.push_back(JoinTrainer(rank, trainer_count));
    for (const auto& [engine, count] : ranks)
      for (uint32_t rank = 0; rank < count; ++rank)
        engines[engine].push_back(JoinRank(engine, rank, count, landing));
    Settle();
    ASSERT_EQ(state.plan.phase, PlanPhase::kPrepared);
  }
  [[nodiscard]] std::string Phase() const { return ViewOf(state).phase; }
  const protocol::Done& LastDone(size_t trainer = 0) { return processes[trainers[trainer]].done.back(); }
};

}  // namespace weightcast::control
