#include "tools/worker/checkpoint_folders.h"

#include <algorithm>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::tools {

std::optional<int64_t> TrailingNumber(std::string_view name) {
  const size_t last = name.find_last_not_of("0123456789");
  return ParseNumber<int64_t>(last == std::string_view::npos ? name : name.substr(last + 1));
}

Result<VersionFolders> VersionFolders::Open(const std::filesystem::path& folder, bool numbered) {
  WC_ASSIGN_OR_RETURN(auto watcher, checkpoint::FolderWatcher::Open(folder));
  return VersionFolders(std::move(watcher), numbered);
}

std::optional<FoundVersion> VersionFolders::Judge(checkpoint::FolderWatcher::Arrival arrival,
                                                  int64_t last) const {
  const auto pass_over = [&arrival](std::string_view reason) {
    WC_LOG(kWarning, arrival.path.string(), " is skipped: ", reason);
    return std::nullopt;
  };
  if (!arrival.checkpoint.ok()) return pass_over(arrival.checkpoint.status().message());
  const auto number = TrailingNumber(arrival.name);
  if (!number && numbered_)
    return pass_over("its name does not end with a number, by which all trainers know its version");
  const int64_t version = number.value_or(std::max<int64_t>(last, 0) + 1);
  if (version <= last) return pass_over(StrCat("version ", last, " has been published already"));
  return FoundVersion{version, std::move(arrival.path), std::move(*arrival.checkpoint)};
}

Result<std::optional<FoundVersion>> VersionFolders::Next(int64_t last, Duration timeout) {
  std::optional<FoundVersion> newest;
  for (;;) {
    // With one at hand at the start, only what is there already can be newer.
    WC_ASSIGN_OR_RETURN(auto arrival, watcher_.Next(newest ? Duration::zero() : timeout));
    if (!arrival) return newest;
    auto found = Judge(std::move(*arrival), newest ? newest->version : last);
    if (found) newest = std::move(found);
    if (newest && last >= 0) return newest;
  }
}

}  // namespace weightcast::tools
