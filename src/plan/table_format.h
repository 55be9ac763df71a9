#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "plan/route.h"
#include "plan/table_shards.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::plan {

inline constexpr uint32_t kTableFormatVersion = 1;
/// No table of one rank is larger, nor has more routes; a decoder refuses what says it is.
inline constexpr size_t kMaxTableBytes = size_t{256} << 20;
inline constexpr size_t kMaxRoutesOfRank = size_t{1} << 22;
/// A piece with its header; leaves room for the framing of a message of 1 MiB.
inline constexpr size_t kMaxPieceBytes = (size_t{1} << 20) - 4096;

/// What one worker needs of a plan: a trainer its routing table, an inference rank its source table.
struct RankTable {
  enum class Role : uint8_t { kTrainer, kInference };

  /// A shard at either end of a route.
  struct Shard {
    int rank = 0;    ///< Of its side: this rank for its own shards, a peer's otherwise.
    int tensor = 0;  ///< Index into source_tensors or destination_tensors.
    Box box;
    uint32_t copy = 0;  ///< Of a destination: which of the equal boxes that its rank holds; 0 is the first.
    friend bool operator==(const Shard&, const Shard&) = default;
  };
  /// One transfer of every update.
  struct Route {
    int peer = 0;            ///< Destination rank in a trainer's table, source rank in an inference rank's.
    uint32_t slot = 0;       ///< Names the transfer at its destination rank: 0..(routes that reach it)-1.
    uint32_t src_shard = 0;  ///< Index into source_shards.
    uint32_t dst_shard = 0;  ///< Index into destination_shards.
    Box src_box;             ///< In the coordinates of the source tensor.
    Shape dst_offset;        ///< In the coordinates of the destination tensor.
    Transform transform = Transform::kNone;
    friend bool operator==(const Route&, const Route&) = default;
  };

  Role role = Role::kTrainer;
  int rank = 0;
  uint32_t epoch = 0;    ///< Of the plan.
  int source_ranks = 0;  ///< How many trainers the plan has.
  int destination_ranks = 0;
  std::vector<TensorInfo> source_tensors;  ///< Those that the routes name.
  std::vector<TensorInfo> destination_tensors;
  std::vector<Shard> source_shards;
  std::vector<Shard> destination_shards;
  std::vector<Route> routes;  ///< In the order of sending for a trainer, by slot for an inference rank.
  std::vector<int> peers;     ///< Ranks of the other side that a route names, ascending.

  [[nodiscard]] const TensorInfo& SourceTensor(uint32_t shard) const {
    return source_tensors[static_cast<size_t>(source_shards[shard].tensor)];
  }
  [[nodiscard]] const TensorInfo& DestinationTensor(uint32_t shard) const {
    return destination_tensors[static_cast<size_t>(destination_shards[shard].tensor)];
  }

  friend bool operator==(const RankTable&, const RankTable&) = default;
};

/// Writes the tables of the ranks of one plan, in the binary form of docs/wire.md, "Routing table". What all
/// of them need is made once. Immutable: any number of threads may encode.
class TableEncoder {
 public:
  /// All three must outlive it. `table` has passed Verify against these layouts.
  TableEncoder(const Layout& trainers, const Layout& inference, const RoutingTable& table);

  /// What `rank` of a side needs. Errors: kInvalidArgument for a rank that the plan does not have,
  /// kExhausted above the limits of a table.
  [[nodiscard]] Result<std::string> Encode(RankTable::Role role, int rank, uint32_t epoch) const;

 private:
  const Layout& trainers_;
  const Layout& inference_;
  const RoutingTable& table_;
  const TensorTexts trainer_tensors_;
  const TensorTexts inference_tensors_;
};

/// Reads one, from a source that need not be trusted; whatever it returns is consistent: indices
/// and boxes lie inside what they point into. Errors: kProtocol for another format version,
/// kCorrupt for a wrong checksum, kCorrupt with a reason for anything else.
Result<RankTable> DecodeRankTable(std::string_view bytes);

/// Compresses bytes and cuts them into pieces of at most kMaxPieceBytes, each with a checksum.
/// At least one piece. Errors: kExhausted when there is no memory to compress in.
Result<std::vector<std::string>> SplitPieces(std::string_view bytes);

/// Puts the pieces of one SplitPieces together, in any order. Errors: kCorrupt when one is missing,
/// given twice, of another table or fails its checksum; kExhausted above `max_bytes`.
Result<std::string> JoinPieces(std::span<const std::string> pieces, size_t max_bytes = kMaxTableBytes);

}  // namespace weightcast::plan
