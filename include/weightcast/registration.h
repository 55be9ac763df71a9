#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "weightcast/memory.h"
#include "weightcast/rules.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"
#include "weightcast/version.h"

namespace weightcast {

/// Along one dimension of a mesh: every rank holds the same.
struct Replicate {
  friend bool operator==(const Replicate&, const Replicate&) = default;
};
/// Along one dimension of a mesh, of size n: dimension `dim` of the tensor, or what is left of it, is cut
/// into n chunks of ceil(elements / n); the last may be smaller, and further ones are empty (torch.chunk's
/// rule, as torch's DTensor).
struct Cut {
  int dim = 0;
  friend bool operator==(const Cut&, const Cut&) = default;
};
using Placement = std::variant<Replicate, Cut>;

/// Ranks in a grid of 1 to 6 dimensions, the outermost first.
struct Mesh {
  std::vector<uint32_t> sizes{};  ///< Ranks along each dimension.
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

/// The part of a tensor that the rank's place in a mesh gives it.
struct Placed {
  uint32_t mesh = 0;                    ///< Index into Registration::meshes.
  std::vector<Placement> placements{};  ///< One for each dimension of the mesh; they apply in that order.
  friend bool operator==(const Placed&, const Placed&) = default;
};

/// Which part of a tensor: a box, or what a mesh makes of it.
using Part = std::variant<Box, Placed>;

/// Where the bytes of an update land, and what makes the engine use them (the switch).
enum class LandingMode : uint8_t {
  kInPlace,  ///< In the live tensors, which may be written from Inference::Begin on.
  kShadow,   ///< In a spare buffer; the switch copies them into the live tensors.
  kLoader,   ///< In memory that the engine gives and does not use live; the switch is the engine's.
};

/// A part of one tensor, and where it lies.
struct Shard {
  TensorInfo tensor;    ///< Global name, dtype and shape.
  Part part{};          ///< WholeOf(shape) for all of it.
  Memory memory{};      ///< Holds the part, and may hold more. Not owned.
  uint64_t offset = 0;  ///< Bytes from the first byte of `memory` to the part's first element.
  /// Elements from one index to the next, for each dimension; empty: dense and row-major. Trainers stage what
  /// is not dense; inference refuses it.
  std::vector<int64_t> strides{};
  bool declared = false;  ///< Known to the plan but not moved ("declared, not sent"); needs no memory.
  std::optional<LandingMode> landing{};  ///< Inference: of this shard; nullopt: LandingOptions::landing.
};

/// What one rank holds: any number of shards of each tensor, in any order. Those of one tensor share no
/// element or are equal; of equal ones inference fills each and trainers read any. Ranks of one layout differ
/// in `coordinates`, and in addresses, devices and lengths of memory: LayoutBytes has all the rest.
struct Registration {
  std::vector<Shard> shards{};
  std::vector<Mesh> meshes{};                        ///< Of the shards that are Placed.
  std::vector<std::vector<uint32_t>> coordinates{};  ///< This rank's place in each of `meshes`.
};

/// The layout of a registration as bytes, whatever the order of its shards: tensors, parts, offsets, strides.
/// Without coordinates and memory: ranks that are told of one layout in the same way get equal bytes, to
/// compare or to hash. No file format: another version of this library may make others. kInvalidArgument as
/// from Register.
Result<std::string> LayoutBytes(const Registration& registration);

/// Gives the bytes of shards that are read when they are sent: those of files, which others may change.
class ShardReader {
 public:
  virtual ~ShardReader() = default;
  /// Fills `out` with the dense bytes of one of the registered shards, from `offset` on. Several threads at
  /// once.
  virtual Status Read(size_t shard, uint64_t offset, std::span<std::byte> out) = 0;
  /// Whether all that was read so far is of the version that was published. Called after the last Read for a
  /// destination and before the last of these bytes is sent: no rank counts as complete without it.
  virtual Status Check() = 0;
};

/// How trainers register.
struct SourceOptions {
  NameRules rules{};  ///< The same at every trainer.
  /// If set, it gives the bytes of all shards, which then need no memory; everything is staged.
  std::shared_ptr<ShardReader> reader{};
};

/// How inference ranks register.
struct LandingOptions {
  LandingMode landing = LandingMode::kInPlace;  ///< Of the shards that do not say otherwise.
  /// Other engines may read the served version from where it landed, if a trainer died or an engine joins
  /// late. Say false if the engine changes these bytes after an update.
  bool shares = true;
  /// The engine's part of the switch, after Commit: called once in each update by the thread that is in
  /// Receive or Wait, before spare buffers are copied. kLoader: from it the engine takes what has landed. An
  /// error says that nothing was changed: the update fails here with that text, and the old version is served
  /// on (unless bytes landed in place). Must not call this Inference. kLoader without it: switch when Receive
  /// returns; Wait is refused.
  std::function<Status(const Version&)> on_switch{};
  /// Tensors of the trainers that this engine does not take: names, or patterns ({*}, {**}). All ranks'
  /// together.
  std::vector<std::string> unwanted{};
  /// Shards of this rank that no trainer sends: names or patterns. As Shard::declared.
  std::vector<std::string> not_sent{};
  /// For engines without memory for a second model: each update comes in these groups of tensors (names or
  /// patterns), one after the other. Each tensor that is sent is in exactly one; tensors of different groups
  /// may lie in the same memory, those of one may not. The engine hands each group on between two calls of
  /// ReceiveGroup, within commit_timeout, and the next is granted then. So only each group is atomic: from
  /// Begin to Finish the engine must be paused and get no requests, and an update that fails after its first
  /// grant leaves it FAILED. Needs kInPlace or kLoader, no on_switch and no commit group; as many groups on
  /// all ranks of the engine. `shares` counts as false. Empty: all tensors together.
  std::vector<std::vector<std::string>> groups{};
};

}  // namespace weightcast
