#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transport/shm/context.h"
#include "transport/shm/link.h"

namespace weightcast::transport::shm {

/// Regions that are deregistered: each is fenced when no copy of a peer may touch it any more, and no peer's
/// devices have it mapped. Belongs to the holder of progress.
class RegionFences {
 public:
  explicit RegionFences(Context& context) : context_(context) {}

  /// Takes `region` back on all links.
  void Add(uint32_t region, std::span<Link* const> links);
  /// Tells the deregistrations that are over. True if there was one.
  bool Settle(std::span<Link* const> links);
  /// `link` is closed, and goes. Its peer is waited for where it has memory of this side mapped.
  void OnClosed(Link& link);
  /// What peers of links that are gone have said.
  void HearDeparted();
  [[nodiscard]] bool empty() const { return waiting_.empty(); }
  [[nodiscard]] bool has_departed() const { return !departed_.empty(); }

 private:
  struct Waiting {
    uint32_t region = 0;
    std::vector<std::pair<Link*, LinkFences::Fence>> fences;
  };

  /// Whether a peer may still have it mapped for its devices.
  [[nodiscard]] bool Held(uint32_t region, std::span<Link* const> links) const;

  Context& context_;
  std::vector<Waiting> waiting_;
  std::vector<DepartedPeer> departed_;
};

}  // namespace weightcast::transport::shm
