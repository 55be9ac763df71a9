#pragma once

#include <cstdint>
#include <vector>

#include "transport/verbs/link_state.h"
#include "transport/verbs/queue_pairs.h"

namespace weightcast::transport::verbs {

/// Grants and regions that are taken back on one link, and the certainty that nothing lands in them any more:
/// docs/verbs.md, "Grants and fences".
class Fences {
 public:
  Fences(LinkState& link, QueuePairs& pairs) : link_(link), pairs_(pairs) {}
  ~Fences();

  // --- At the target
  Status OpenGrant(const GrantName& grant);
  void Revoke(const GrantName& grant);
  /// The peer may write to it no more. It is used until that is certain.
  void Forget(LocalRegion& region);
  void OnFenced(const Fenced& fenced);
  /// What has been asked for in vain until now is made so.
  void Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;

  // --- At the writer
  void OnRegionOver(const RegionOver& over);
  void BeginBarrier(uint64_t fence);
  void LookAtBarriers();

  /// Nothing of this link lands any more, and nobody is to be answered.
  void EndAll();

 private:
  /// At the target: the peer has been told, and has not answered.
  struct Fence {
    uint64_t number = 0;
    GrantName grant;                ///< Or
    LocalRegion* region = nullptr;  ///< one of these.
    TimePoint deadline;
  };
  /// At the writer: answered once this has completed.
  struct Barrier {
    uint64_t fence = 0;
    struct Mark {
      uint32_t generation = 0;
      uint32_t posted = 0;
    };
    std::vector<Mark> lanes;
  };

  void Begin(Fence fence);
  void End(const Fence& fence);
  [[nodiscard]] bool Done(const Barrier& barrier) const;

  LinkState& link_;
  QueuePairs& pairs_;
  std::vector<Fence> fences_;
  std::vector<Barrier> barriers_;
  uint64_t last_fence_ = 0;
};

}  // namespace weightcast::transport::verbs
