#include "plan/fair_share.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <bit>

namespace weightcast::plan {
namespace {

/// Bytes of each rank, after checking that each set's members together have its demand.
std::vector<int64_t> Loads(const ReplicaSets& sets, const std::vector<int64_t>& demand,
                           const FairShare& share, int ranks) {
  std::vector<int64_t> loads(static_cast<size_t>(ranks), 0);
  for (size_t set = 0; set < sets.size(); ++set) {
    int64_t sum = 0;
    for (size_t m = 0; m < sets[set].size(); ++m) {
      const int64_t quota = share.quota[sets.FirstMember(set) + m];
      EXPECT_GE(quota, 0);
      loads[static_cast<size_t>(sets[set][m])] += quota;
      sum += quota;
    }
    EXPECT_EQ(sum, demand[set]);
  }
  return loads;
}

TEST(FairShareTest, OneSetIsSharedEvenly) {
  ReplicaSets sets;
  sets.Intern(std::vector<int>{0, 2, 3});
  const FairShare share = ShareFairly(sets, std::vector<int64_t>{10}, 4);
  EXPECT_EQ(share.bound, 4);
  EXPECT_EQ(share.quota, (std::vector<int64_t>{4, 3, 3}));
}

TEST(FairShareTest, ARankThatIsBusyAloneIsSpared) {
  ReplicaSets sets;
  sets.Intern(std::vector<int>{0});
  sets.Intern(std::vector<int>{0, 1, 2});
  const std::vector<int64_t> demand{50, 70};
  const FairShare share = ShareFairly(sets, demand, 3);
  EXPECT_EQ(share.bound, 50);
  EXPECT_LE(Loads(sets, demand, share, 3)[1], 50);
  EXPECT_EQ(ShareFairly(sets, std::vector<int64_t>{30, 60}, 3).bound, 30);
}

TEST(FairShareTest, SetsAreKeptOnce) {
  ReplicaSets sets;
  const uint32_t a = sets.Intern(std::vector<int>{1, 2});
  const uint32_t b = sets.Intern(std::vector<int>{2});
  EXPECT_EQ(sets.Intern(std::vector<int>{1, 2}), a);
  EXPECT_NE(a, b);
  EXPECT_EQ(sets.size(), 2U);
  EXPECT_EQ(sets.members(), 3U);
}

TEST(FairShareTest, ALongChainOfSetsIsNoTroubleForTheStack) {
  // Each set overlaps the next by one rank: the paths of the flow run along the whole chain.
  constexpr int kRanks = 20'000;
  ReplicaSets sets;
  std::vector<int64_t> demand;
  for (int rank = 0; rank + 1 < kRanks; ++rank) {
    sets.Intern(std::vector<int>{rank, rank + 1});
    demand.push_back(rank == 0 ? 2'000 : 1);
  }
  const FairShare share = ShareFairly(sets, demand, kRanks);
  EXPECT_EQ(share.bound, 1'000);
}

RC_GTEST_PROP(FairShareProperty, BoundIsThatOfTheTightestGroupOfRanks, ()) {
  const int ranks = *rc::gen::inRange(1, 6);
  ReplicaSets sets;
  std::vector<int64_t> demand;
  std::vector<unsigned> masks;
  for (int n = *rc::gen::inRange(1, 8); n > 0; --n) {
    const unsigned mask = *rc::gen::inRange(1U, 1U << ranks);
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) {
      if ((mask >> rank & 1) != 0) members.push_back(rank);
    }
    if (sets.Intern(members) < demand.size()) continue;
    demand.push_back(*rc::gen::inRange(0, 100));
    masks.push_back(mask);
  }
  // Whatever only some ranks hold, those must send: by Hall's theorem that is all that binds.
  int64_t bound = 0;
  for (unsigned group = 1; group < 1U << ranks; ++group) {
    int64_t bytes = 0;
    for (size_t set = 0; set < masks.size(); ++set) bytes += (masks[set] & ~group) == 0 ? demand[set] : 0;
    const int64_t count = std::popcount(group);
    bound = std::max(bound, (bytes + count - 1) / count);
  }
  const FairShare share = ShareFairly(sets, demand, ranks);
  RC_ASSERT(share.bound == bound);
  const auto loads = Loads(sets, demand, share, ranks);
  RC_ASSERT(*std::max_element(loads.begin(), loads.end()) <= bound);
}

}  // namespace
}  // namespace weightcast::plan
