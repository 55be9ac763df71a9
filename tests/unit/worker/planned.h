#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "plan/layout_builder.h"
#include "plan/planner.h"
#include "plan/table_format.h"
#include "plan/verify.h"
#include "weightcast/clock.h"
#include "weightcast/worker.h"

/// What tests of the worker's data path have in common.
namespace weightcast::worker {

/// Waits for something that another thread does.
class Flag {
 public:
  void Set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool Wait(double seconds = 20) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, FromSeconds(seconds), [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

inline plan::Layout LayoutOf(const std::vector<std::vector<Shard>>& ranks) {
  plan::LayoutBuilder builder(static_cast<int>(ranks.size()));
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<plan::Holding> holdings;
    for (const Shard& shard : ranks[r]) holdings.push_back({shard.tensor, std::get<Box>(shard.part)});
    EXPECT_TRUE(builder.AddRank(static_cast<int>(r), holdings).ok());
  }
  auto layout = builder.Build();
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  return std::move(*layout);
}

/// The routing table of the ranks of one side to those of the other, as each rank gets it.
class Planned {
 public:
  Planned(const std::vector<std::vector<Shard>>& sources, const std::vector<std::vector<Shard>>& sinks)
      : sources_(LayoutOf(sources)), sinks_(LayoutOf(sinks)) {
    const NameRules rules;
    const plan::PlanRequest request{.trainers = sources_, .inference = sinks_, .rules = rules};
    auto made = plan::MakePlan(request);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    EXPECT_TRUE(plan::Verify(request, made->table).ok());
    table_ = std::move(made->table);
  }
  [[nodiscard]] std::string For(plan::RankTable::Role role, size_t rank, uint32_t epoch = 1) const {
    return *plan::TableEncoder(sources_, sinks_, table_).Encode(role, static_cast<int>(rank), epoch);
  }

 private:
  plan::Layout sources_;
  plan::Layout sinks_;
  plan::RoutingTable table_;
};

}  // namespace weightcast::worker
