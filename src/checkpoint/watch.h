#pragma once

#include <sys/types.h>

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/poller.h"
#include "checkpoint/checkpoint.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::checkpoint {

/// Watches a folder for checkpoints: each sub-folder that was there at the start (in natural order
/// of names: "step-9" before "step-10"), then each that is renamed into it, in the order of the
/// renames. Names that begin with '.' are ignored, and so is a folder that is made in place, since
/// nobody can tell when its files are whole: write it elsewhere on the same file system (or under a
/// name with a leading '.'), then rename it. A folder that replaces one of the same name counts as new.
///
/// Should the kernel lose events because Next() is called too seldom, the folder is read again as
/// at the start. Sees renames made on this host only: inotify tells nothing of other clients of a network
/// file system.
class FolderWatcher {
 public:
  /// A sub-folder that has come.
  struct Arrival {
    std::string name;
    std::filesystem::path path;
    Result<Checkpoint> checkpoint;  ///< Or why it cannot be read: say so, and go on with the next.
  };

  /// Errors: kInvalidArgument (no such folder), kPermission, kExhausted (inotify instances or
  /// watches: the message names the limit to raise).
  static Result<FolderWatcher> Open(const std::filesystem::path& folder);
  FolderWatcher(FolderWatcher&&) noexcept = default;
  FolderWatcher& operator=(FolderWatcher&&) noexcept = default;

  /// The next arrival; nullopt when none came in time (0: looks without waiting; nullopt: no limit).
  /// One thread at a time.
  /// Errors: kCancelled after Interrupt(); kUnavailable when the watched folder itself was removed,
  /// moved or unmounted, from then on always.
  Result<std::optional<Arrival>> Next(std::optional<Duration> timeout);

  /// Ends a Next() that is waiting and all later ones. Any thread or signal handler, any number of times.
  void Interrupt() const { wake_.Wake(); }

  /// Readable when events have come: for a poller. What Open() found is not announced through it:
  /// call Next(0) until nullopt first.
  [[nodiscard]] int fd() const { return inotify_.get(); }

 private:
  using Identity = std::pair<dev_t, ino_t>;

  FolderWatcher(std::filesystem::path folder, UniqueFd inotify, WakeFd wake);
  Status Scan();
  Status ReadEvents();
  Status Apply(uint32_t mask, std::string_view name);
  void Add(const std::string& name);
  Result<bool> WaitForEvents(std::optional<TimePoint> deadline) const;

  std::filesystem::path folder_;
  UniqueFd inotify_;
  WakeFd wake_;
  std::deque<std::string> pending_;
  std::map<std::string, Identity> seen_;  ///< Folders now there that have been put into pending_.
  Status broken_;                         ///< Why nothing more can come.
};

}  // namespace weightcast::checkpoint
