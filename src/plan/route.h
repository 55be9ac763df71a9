#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/large_vector.h"
#include "plan/box.h"
#include "weightcast/tensor.h"

namespace weightcast::plan {

/// A rank and, of equal boxes that it holds of a tensor, which: in 32 bits, as plans have very many of them.
class RankCopy {
 public:
  static constexpr uint32_t kRanks = 1 << 20;
  static constexpr uint32_t kCopies = 1 << 12;
  RankCopy() = default;
  RankCopy(int rank, uint32_t copy)
      : bits_(static_cast<uint32_t>(rank) % kRanks * kCopies + copy % kCopies) {}
  [[nodiscard]] int rank() const { return static_cast<int>(bits_ / kCopies); }
  [[nodiscard]] uint32_t copy() const { return bits_ % kCopies; }
  friend auto operator<=>(const RankCopy&, const RankCopy&) = default;

 private:
  uint32_t bits_ = 0;
};

/// What the sender does to the elements of a route before they leave. kQuantise: the values of FP8 blocks
/// (plan/quantise.h).
enum class Transform : uint8_t { kNone, kCast, kQuantise };

/// One box of one tensor from one source rank to one shard of a destination rank.
struct Route {
  int src_tensor = 0;  ///< Index in the trainers' layout.
  int dst_tensor = 0;  ///< Index in the inference layout.
  int src_rank = 0;
  int dst_rank = 0;
  uint32_t dst_copy = 0;  ///< Where the destination rank holds the same box several times: which of them.
  Box src_box;            ///< In the coordinates of the source tensor.
  Shape dst_offset;       ///< Where it goes, in the coordinates of the destination tensor; same size.
  Transform transform = Transform::kNone;
  friend bool operator==(const Route&, const Route&) = default;
};

/// Which elements of which source tensor are which elements of a destination tensor: `extent`
/// elements of dimension `dim`, from src_start on there and from dst_start on here, and all of
/// every other dimension. Scalars have extent 1.
struct Link {
  int src_tensor = 0;
  int dst_tensor = 0;
  int dim = 0;
  int64_t src_start = 0;
  int64_t dst_start = 0;
  int64_t extent = 0;
  Transform transform = Transform::kNone;
  friend bool operator==(const Link&, const Link&) = default;
};

/// A Route that borrows its box from the table.
struct RouteView {
  const Link* link = nullptr;
  int src_rank = 0;
  int dst_rank = 0;
  uint32_t dst_copy = 0;
  std::span<const int64_t> src_offset;
  std::span<const int64_t> size;

  /// Offset in dimension `d` of the destination tensor.
  [[nodiscard]] int64_t dst_offset(int d) const {
    return src_offset[static_cast<size_t>(d)] + (d == link->dim ? link->dst_start - link->src_start : 0);
  }
  [[nodiscard]] int64_t elements() const;
};

/// All routes. They are numbered 0.. and sorted by source rank; inside one, in the order in which
/// it should send. About 20 bytes a route, and each distinct box and link once.
/// Immutable once built; any number of threads may read it.
class RoutingTable {
 public:
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(routes_.size()); }
  [[nodiscard]] int source_ranks() const { return static_cast<int>(by_source_.size()) - 1; }
  [[nodiscard]] int destination_ranks() const { return static_cast<int>(by_destination_.size()) - 1; }
  [[nodiscard]] const std::vector<Link>& links() const { return links_; }

  [[nodiscard]] RouteView View(int64_t route) const {
    const Entry& entry = routes_[static_cast<size_t>(route)];
    const size_t dims = dims_[entry.link];
    const int64_t* box = coords_.data() + entry.coord;
    return {&links_[entry.link], entry.src_rank, entry.to.rank(),
            entry.to.copy(),     {box, dims},    {box + dims, dims}};
  }
  [[nodiscard]] Route At(int64_t route) const;
  /// Sends for the memory that View will look at first.
  void Prefetch(int64_t route) const { __builtin_prefetch(&routes_[static_cast<size_t>(route)]); }

  /// Routes that leave `rank`: [first, second).
  [[nodiscard]] std::pair<int64_t, int64_t> OfSource(int rank) const;
  /// Routes that reach `rank`, ascending. The place of a route in this list is its slot.
  [[nodiscard]] std::span<const uint32_t> OfDestination(int rank) const;
  /// The place of a route among those of its destination rank.
  [[nodiscard]] uint32_t SlotOf(int64_t route) const { return routes_[static_cast<size_t>(route)].slot; }

 private:
  friend class RoutingTableBuilder;
  struct Entry {
    uint32_t link;
    uint32_t coord;  ///< Where its box begins in coords_.
    int32_t src_rank;
    RankCopy to;
    uint32_t slot;
  };

  std::vector<Link> links_;
  std::vector<uint8_t> dims_;    ///< Dimensions of the tensors of each link.
  LargeVector<int64_t> coords_;  ///< Per distinct box: offsets, then sizes.
  LargeVector<Entry> routes_;
  std::vector<int64_t> by_source_{0};       ///< First route of each source rank, and one more.
  std::vector<int64_t> by_destination_{0};  ///< First place in incoming_ of each destination rank.
  LargeVector<uint32_t> incoming_;
};

/// Collects routes in any order of source ranks, then sorts them stably by source rank.
class RoutingTableBuilder {
 public:
  /// `dims` are the dimensions of the tensors of each link. `coords` may hold boxes already: the
  /// offsets of each, then its sizes, in the coordinates of the source tensor.
  RoutingTableBuilder(int source_ranks, int destination_ranks, std::vector<Link> links,
                      std::vector<uint8_t> dims, LargeVector<int64_t> coords = {});

  /// Keeps a box for any number of routes; returns where it begins in the coordinates.
  uint32_t AddBox(const Box& box);
  /// `coord` is where the box begins. At most UINT32_MAX routes, and as many coordinates.
  void Add(uint32_t link, int src_rank, RankCopy to, uint32_t coord);
  void Reserve(size_t routes);
  RoutingTable Build() &&;

 private:
  RoutingTable table_;
};

}  // namespace weightcast::plan
