#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"

namespace weightcast::tools {

/// The bytes of every version of a demo's model: version 1 stands in a file, later ones follow from
/// formulas that anyone can compute again (checkpoint/generate.h).
class Versions {
 public:
  /// `generated`: the file was made by the formula too, so no version needs it to be checked.
  static Result<Versions> Open(const std::filesystem::path& path, bool generated);

  [[nodiscard]] const checkpoint::Checkpoint& file() const { return *file_; }
  /// Makes a shard of a version in place.
  Status Fill(const Shard& shard, int64_t version) const;
  /// Makes the shard again, a piece at a time in memory of its own, and compares each byte.
  /// Errors: kCorrupt, naming tensor and element.
  Status Check(const Shard& shard, int64_t version) const;

 private:
  Status Read(const TensorInfo& tensor, const Box& box, std::span<std::byte> out) const;
  Status Make(const TensorInfo& tensor, const Box& box, int64_t version, std::span<std::byte> out) const;

  std::shared_ptr<const checkpoint::Checkpoint> file_;
  bool generated_ = false;
};

/// Where a rank writes what it received.
struct VersionOutput {
  std::filesystem::path folder;
  std::string engine;
  int rank = 0;
  int ranks = 1;
  bool sync = false;  ///< Flushed to disk before it gets its name.
};

/// Writes OUTPUT/<engine>/<version>/ (or this rank's part of it), atomically. `original`: a file of
/// exactly these tensors whose header is taken over, so that an engine of one rank writes that
/// file's bytes again; nullptr: a header in the reference writer's order is made.
Status WriteVersion(const VersionOutput& output, const Version& version, const std::vector<Shard>& shards,
                    const checkpoint::Header* original);

}  // namespace weightcast::tools
