#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "checkpoint/watch.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// The number at the end of a folder's name: 100 of "step-100"; nullopt if there is none that fits.
std::optional<int64_t> TrailingNumber(std::string_view name);

/// A checkpoint that stands for one version.
struct FoundVersion {
  int64_t version = 0;
  std::filesystem::path path;
  checkpoint::Checkpoint checkpoint;
};

/// The versions in a watched folder: the newest sub-folder that is there, then each that is renamed
/// into it. A version is the number at the end of the sub-folder's name; without one it counts on
/// from the last version, unless `numbered`: several processes could not agree on it then. What is no
/// good is reported once, as a warning, and skipped.
class VersionFolders {
 public:
  static Result<VersionFolders> Open(const std::filesystem::path& folder, bool numbered);

  /// The next one later than `last`; at first (last < 0) the newest. nullopt: none within `timeout`.
  /// Errors: the folder has gone.
  Result<std::optional<FoundVersion>> Next(int64_t last, Duration timeout);

 private:
  VersionFolders(checkpoint::FolderWatcher watcher, bool numbered)
      : watcher_(std::move(watcher)), numbered_(numbered) {}
  [[nodiscard]] std::optional<FoundVersion> Judge(checkpoint::FolderWatcher::Arrival arrival,
                                                  int64_t last) const;

  checkpoint::FolderWatcher watcher_;
  bool numbered_;
};

}  // namespace weightcast::tools
