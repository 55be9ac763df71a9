#include "plan/fair_share.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace weightcast::plan {
namespace {

constexpr int kUnreached = std::numeric_limits<int>::max();

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Dinic's algorithm on the bipartite graph of some sets and the ranks in them. An edge is a member
/// of a set; its flow is the member's quota.
class Flow {
 public:
  Flow(const ReplicaSets& sets, std::span<const int64_t> demand, std::span<const uint32_t> chosen,
       std::vector<int64_t>& quota);

  /// Raises the capacity of the ranks until every demand is met; returns it.
  int64_t Solve();

 private:
  struct Edge {
    int set;
    int rank;
    size_t quota;
  };
  struct Hop {
    int forward;        ///< Edge from a set to a rank.
    int backward = -1;  ///< Edge whose flow is taken back, from that rank to the next set; -1: the end.
  };

  void Number(const ReplicaSets& sets, std::span<const uint32_t> chosen);
  /// Distances from the sets that are not satisfied; true if one reaches a rank with room.
  bool Level();
  void Augment(int from);
  /// Extends the path by one hop out of `set`; false at a dead end.
  bool Advance(int set);
  void Push(int from);
  [[nodiscard]] int64_t CapacityOfCut() const;

  [[nodiscard]] bool HasRoom(int rank) const { return used_[rank] < capacity_; }
  int64_t& FlowOf(int edge) { return quota_[edges_[edge].quota]; }

  std::vector<int64_t>& quota_;
  std::vector<int64_t> demand_;
  std::vector<int64_t> left_;  ///< Per set: demand not yet met.
  std::vector<int64_t> used_;  ///< Per rank.
  int64_t capacity_ = 0;
  std::vector<Edge> edges_;           ///< By set.
  std::vector<int> first_of_set_;     ///< Into edges_.
  std::vector<int> into_rank_;        ///< Edges by rank.
  std::vector<int> first_into_rank_;  ///< Into into_rank_.
  std::vector<int> set_level_, rank_level_;
  std::vector<int> next_edge_, next_into_;  ///< How far each set and rank has been searched in this phase.
  std::vector<Hop> path_;
};

Flow::Flow(const ReplicaSets& sets, std::span<const int64_t> demand, std::span<const uint32_t> chosen,
           std::vector<int64_t>& quota)
    : quota_(quota) {
  Number(sets, chosen);
  for (const uint32_t set : chosen) demand_.push_back(demand[set]);
  left_ = demand_;
  set_level_.resize(demand_.size());
  rank_level_.resize(used_.size());
}

void Flow::Number(const ReplicaSets& sets, std::span<const uint32_t> chosen) {
  std::vector<int> ranks;
  for (const uint32_t set : chosen) ranks.insert(ranks.end(), sets[set].begin(), sets[set].end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  used_.assign(ranks.size(), 0);
  first_into_rank_.assign(ranks.size() + 1, 0);
  first_of_set_.push_back(0);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto members = sets[chosen[i]];
    for (size_t m = 0; m < members.size(); ++m) {
      const auto rank = static_cast<int>(std::ranges::lower_bound(ranks, members[m]) - ranks.begin());
      edges_.push_back({static_cast<int>(i), rank, sets.FirstMember(chosen[i]) + m});
      ++first_into_rank_[rank + 1];
    }
    first_of_set_.push_back(static_cast<int>(edges_.size()));
  }
  std::partial_sum(first_into_rank_.begin(), first_into_rank_.end(), first_into_rank_.begin());
  into_rank_.resize(edges_.size());
  std::vector<int> at(first_into_rank_.begin(), first_into_rank_.end() - 1);
  for (int e = 0; e < static_cast<int>(edges_.size()); ++e) into_rank_[at[edges_[e].rank]++] = e;
}

bool Flow::Level() {
  std::fill(set_level_.begin(), set_level_.end(), kUnreached);
  std::fill(rank_level_.begin(), rank_level_.end(), kUnreached);
  std::vector<int> queue;
  for (int s = 0; s < static_cast<int>(left_.size()); ++s) {
    if (left_[s] == 0) continue;
    set_level_[s] = 0;
    queue.push_back(s);
  }
  bool room = false;
  for (size_t head = 0; head < queue.size(); ++head) {
    const int set = queue[head];
    for (int e = first_of_set_[set]; e < first_of_set_[set + 1]; ++e) {
      const int rank = edges_[e].rank;
      if (rank_level_[rank] != kUnreached) continue;
      rank_level_[rank] = set_level_[set] + 1;
      room = room || HasRoom(rank);
      for (int i = first_into_rank_[rank]; i < first_into_rank_[rank + 1]; ++i) {
        const int other = edges_[into_rank_[i]].set;
        if (set_level_[other] != kUnreached || FlowOf(into_rank_[i]) == 0) continue;
        set_level_[other] = rank_level_[rank] + 1;
        queue.push_back(other);
      }
    }
  }
  return room;
}

bool Flow::Advance(int set) {
  for (int& e = next_edge_[set]; e < first_of_set_[set + 1]; ++e) {
    const int rank = edges_[e].rank;
    if (rank_level_[rank] != set_level_[set] + 1) continue;
    if (HasRoom(rank)) {
      path_.push_back({e});
      return true;
    }
    for (int& i = next_into_[rank]; i < first_into_rank_[rank + 1]; ++i) {
      const int back = into_rank_[i];
      if (set_level_[edges_[back].set] != rank_level_[rank] + 1 || FlowOf(back) == 0) continue;
      path_.push_back({e, back});
      return true;
    }
  }
  return false;
}

void Flow::Push(int from) {
  const int last = edges_[path_.back().forward].rank;
  int64_t amount = std::min(left_[from], capacity_ - used_[last]);
  for (const Hop& hop : path_) {
    if (hop.backward >= 0) amount = std::min(amount, FlowOf(hop.backward));
  }
  for (const Hop& hop : path_) {
    FlowOf(hop.forward) += amount;
    if (hop.backward >= 0) FlowOf(hop.backward) -= amount;
  }
  left_[from] -= amount;
  used_[last] += amount;
}

void Flow::Augment(int from) {
  path_.clear();
  int set = from;
  while (left_[from] > 0) {
    if (!Advance(set)) {
      if (path_.empty()) return;
      // A dead end: the hop that led here is spent.
      ++next_into_[edges_[path_.back().forward].rank];
      set = edges_[path_.back().forward].set;
      path_.pop_back();
      continue;
    }
    if (path_.back().backward >= 0) {
      set = edges_[path_.back().backward].set;
      continue;
    }
    Push(from);
    path_.clear();
    set = from;
  }
}

int64_t Flow::CapacityOfCut() const {
  // What the unsatisfied sets reach: its ranks are full, and no other set sends to them.
  int64_t bytes = 0;
  for (size_t s = 0; s < demand_.size(); ++s) bytes += set_level_[s] == kUnreached ? 0 : demand_[s];
  const auto ranks = std::ranges::count_if(rank_level_, [](int level) { return level != kUnreached; });
  return DivideUp(bytes, ranks);
}

int64_t Flow::Solve() {
  capacity_ = DivideUp(std::accumulate(demand_.begin(), demand_.end(), int64_t{0}),
                       static_cast<int64_t>(used_.size()));
  for (;;) {
    while (Level()) {
      next_edge_.assign(first_of_set_.begin(), first_of_set_.end() - 1);
      next_into_.assign(first_into_rank_.begin(), first_into_rank_.end() - 1);
      for (int s = 0; s < static_cast<int>(left_.size()); ++s) {
        if (set_level_[s] == 0) Augment(s);
      }
    }
    if (std::count(left_.begin(), left_.end(), 0) == static_cast<ptrdiff_t>(left_.size())) return capacity_;
    capacity_ = CapacityOfCut();
  }
}

/// Sets that share no rank are independent: groups them. Ids are those of any one rank in the group.
class Groups {
 public:
  explicit Groups(int ranks) : parent_(static_cast<size_t>(ranks)) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  int Find(int rank) {
    while (parent_[rank] != rank) rank = parent_[rank] = parent_[parent_[rank]];
    return rank;
  }
  void Join(std::span<const int> ranks) {
    for (const int rank : ranks) parent_[Find(rank)] = Find(ranks[0]);
  }

 private:
  std::vector<int> parent_;
};

/// One set alone: an even share for each member.
int64_t ShareEvenly(size_t members, int64_t demand, int64_t* quota) {
  const auto count = static_cast<int64_t>(members);
  for (int64_t m = 0; m < count; ++m) quota[m] = demand / count + (m < demand % count ? 1 : 0);
  return DivideUp(demand, count);
}

}  // namespace

FairShare ShareFairly(const ReplicaSets& sets, std::span<const int64_t> demand, int ranks) {
  FairShare out;
  out.quota.assign(sets.members(), 0);
  Groups groups(ranks);
  std::vector<uint32_t> order;
  for (uint32_t set = 0; set < sets.size(); ++set) {
    if (demand[set] == 0) continue;
    groups.Join(sets[set]);
    order.push_back(set);
  }
  std::ranges::sort(order, {}, [&](uint32_t set) { return std::pair(groups.Find(sets[set][0]), set); });
  for (size_t first = 0; first < order.size();) {
    size_t last = first + 1;
    while (last < order.size() && groups.Find(sets[order[last]][0]) == groups.Find(sets[order[first]][0]))
      ++last;
    const auto chosen = std::span(order).subspan(first, last - first);
    const uint32_t set = chosen[0];
    const int64_t bound = chosen.size() == 1 ? ShareEvenly(sets[set].size(), demand[set],
                                                           out.quota.data() + sets.FirstMember(set))
                                             : Flow(sets, demand, chosen, out.quota).Solve();
    out.bound = std::max(out.bound, bound);
    first = last;
  }
  return out;
}

}  // namespace weightcast::plan
