#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/large_vector.h"
#include "plan/box.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::plan {

inline constexpr int kMaxRanks = 1 << 20;
inline constexpr int kMaxTensors = 1 << 22;
inline constexpr int kMaxMeshDims = 6;
/// How often one rank may hold the same box of a tensor.
inline constexpr int kMaxCopies = 1 << 12;

/// One shard that one rank holds, as a worker registers it. A rank may hold several of one tensor.
struct Holding {
  TensorInfo tensor;
  Box box;
  friend bool operator==(const Holding&, const Holding&) = default;
};

inline constexpr int kReplicate = -1;

/// One dimension of a mesh of ranks, and what it does to a tensor: replicates it, or cuts one of
/// its dimensions (torch DTensor's Replicate and Shard). Neighbours along it are `stride` ranks apart.
struct MeshDim {
  int size = 1;
  int stride = 1;
  int shard_dim = kReplicate;
  friend auto operator<=>(const MeshDim&, const MeshDim&) = default;
};

/// How the ranks of a mesh hold any tensor that has enough dimensions. Mesh dimensions apply in
/// order, outermost first: Shard(d) cuts what is left of dimension d into `size` pieces of
/// ceil(n / size) elements (torch.chunk's rule: the last may be smaller, further ones empty).
/// A rank's number is first_rank + sum of coordinate * stride. An empty mesh is the one rank `first_rank`.
struct Pattern {
  int first_rank = 0;
  std::vector<MeshDim> mesh;
  friend auto operator<=>(const Pattern&, const Pattern&) = default;

  /// The largest rank in the mesh.
  [[nodiscard]] int last_rank() const;
};

/// Called with a rank and the box it holds. The box is the caller's only during the call.
using BoxVisitor = std::function<void(int rank, const Box& box)>;

/// The boxes of one tensor that one rank holds and that are kept as a list: of each its offsets, then its
/// sizes. Sorted by offsets, then sizes; equal ones (copies) stand together. Borrowed from the layout.
struct RankBoxes {
  const int64_t* coords = nullptr;
  uint32_t count = 0;

  /// The number of the box that has the element `at`; of equal ones that of `copy`. `count` if there is none.
  [[nodiscard]] uint32_t Find(std::span<const int64_t> at, uint32_t copy = 0) const;
};

/// All shards of one side. Tensors are numbered 0.. in the order in which they became known.
/// Each tensor's boxes come in parts, one for each engine that holds it (trainers: one), which is
/// either a pattern, shared by many tensors and expanded only when asked, or a list of boxes.
/// Immutable once built; any number of threads may read it.
class Layout {
 public:
  /// What one engine holds of one tensor.
  struct Part {
    int pattern = -1;        ///< Index into patterns(), or -1: a list of boxes.
    int first_rank = 0;      ///< Added to every rank of the pattern; of a list, its first rank.
    uint64_t first_box = 0;  ///< Into the list of boxes.
    uint64_t first_coord = 0;
    uint32_t boxes = 0;
    bool gapless = false;  ///< Of a list: its ranks are first_rank, first_rank + 1 and so on.
    bool several = false;  ///< Of a list: some rank is there more than once.
    uint8_t dims = 0;      ///< Of the boxes of a list.
  };

  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] int tensors() const { return static_cast<int>(infos_.size()); }
  [[nodiscard]] const TensorInfo& tensor(int index) const { return infos_[static_cast<size_t>(index)]; }
  [[nodiscard]] std::optional<int> Find(std::string_view name) const;
  /// Whether the side said that this tensor takes no part in updates.
  [[nodiscard]] bool not_sent(int tensor) const { return not_sent_[static_cast<size_t>(tensor)]; }

  /// Whether any rank holds several boxes of one tensor.
  [[nodiscard]] bool several() const { return several_; }

  /// Every box that is not empty, part by part, by rank inside a part; those of a rank as in RankBoxes.
  void ForEachBox(int tensor, const BoxVisitor& visit) const;
  /// The boxes that `rank` holds and that are not empty, in the order of RankBoxes.
  [[nodiscard]] std::vector<Box> BoxesOf(int tensor, int rank) const;
  /// The first of them; nullopt if there are none.
  [[nodiscard]] std::optional<Box> BoxOf(int tensor, int rank) const;
  /// The box of `rank` that has the element `at`, into a box of the caller's, which saves allocations; a box
  /// that is the rank's only one in any case. False if there is none.
  bool FindBox(int tensor, int rank, std::span<const int64_t> at, Box& box) const;
  /// The box that `rank` has from a pattern, likewise.
  bool FindPatternBox(int tensor, int rank, Box& box) const;
  /// Where the boxes of a rank are kept, for those who fetch many at once; none if the rank holds none or
  /// has its box from a pattern.
  [[nodiscard]] RankBoxes FindCoords(int tensor, int rank) const;
  /// Bytes of all shards of a rank.
  [[nodiscard]] int64_t BytesOfRank(int rank) const;

  [[nodiscard]] const std::vector<Pattern>& patterns() const { return patterns_; }
  [[nodiscard]] std::span<const Part> parts(int tensor) const;
  /// The boxes of one part of `tensor`.
  void ForEachBoxOfPart(int tensor, const Part& part, const BoxVisitor& visit) const;

 private:
  friend class LayoutAssembler;

  /// The places [first, second) of a rank's boxes in a list; equal ones if there are none.
  [[nodiscard]] std::pair<uint32_t, uint32_t> PlacesInList(const Part& part, int rank) const;

  int ranks_ = 0;
  bool several_ = false;
  std::vector<TensorInfo> infos_;
  std::vector<int32_t> by_name_;  ///< Tensor indices, sorted by name.
  std::vector<bool> not_sent_;
  std::vector<Pattern> patterns_;
  std::vector<Part> parts_;
  std::vector<uint32_t> first_part_;  ///< Per tensor, and one more.
  LargeVector<int32_t> box_ranks_;
  LargeVector<int64_t> box_coords_;  ///< Per box: offsets, then sizes.
};

/// Puts engines side by side: rank r of engine e becomes r + the ranks of the engines before it.
/// Errors: kInvalidArgument when two engines disagree about a tensor's dtype or shape (both shown).
Result<Layout> JoinEngines(std::span<const Layout> engines);

}  // namespace weightcast::plan
