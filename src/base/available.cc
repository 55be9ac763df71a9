#include "base/available.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "base/strings.h"

namespace weightcast {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  return ParseNumber<uint64_t>(text);  // "max" is no number: no limit.
}

/// The number after `key` in a file of "key value" lines.
uint64_t ReadField(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word != key) continue;
    uint64_t value = 0;
    return file >> value ? value : kUnknown;
  }
  return kUnknown;
}

uint64_t HostAvailable() {
  const uint64_t kilobytes = ReadField("/proc/meminfo", "MemAvailable:");
  return kilobytes == kUnknown ? kUnknown : kilobytes << 10;
}

/// What is left in one group: its page cache of files can be dropped, so it does not count as used.
uint64_t LeftIn(const std::string& folder, const char* limit_file, const char* usage_file) {
  const auto limit = ReadNumber(folder + limit_file);
  const auto usage = ReadNumber(folder + usage_file);
  if (!limit || !usage) return kUnknown;
  const uint64_t inactive = ReadField(folder + "/memory.stat", "inactive_file");
  const uint64_t used = *usage - std::min(*usage, inactive == kUnknown ? 0 : inactive);
  return *limit - std::min(*limit, used);
}

uint64_t GroupAvailable() {
  uint64_t left = kUnknown;
  for (const ControlGroup& group : ControlGroupsOf("")) {
    if (group.controllers.empty()) {
      left = std::min(left, LeftIn("/sys/fs/cgroup" + group.path, "/memory.max", "/memory.current"));
    } else if (("," + group.controllers + ",").find(",memory,") != std::string::npos) {
      left = std::min(left, LeftIn("/sys/fs/cgroup/memory" + group.path, "/memory.limit_in_bytes",
                                   "/memory.usage_in_bytes"));
    }
  }
  return left;
}

/// What is left of `ulimit -v`.
uint64_t AddressesAvailable() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  if (!(statm >> pages)) return kUnknown;
  const uint64_t used = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
}

}  // namespace

std::vector<ControlGroup> ControlGroupsOf(const std::string& root) {
  std::ifstream lines(root + "/proc/self/cgroup");
  std::vector<ControlGroup> groups;
  for (std::string line; std::getline(lines, line);) {
    // "4:memory:/path" (v1) or "0::/path" (v2).
    const size_t first = line.find(':');
    const size_t second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    for (std::string path = line.substr(second + 1); path.size() > 1; path.resize(path.rfind('/')))
      groups.push_back({controllers, path});
    groups.push_back({controllers, ""});
  }
  return groups;
}

uint64_t AvailableMemory() { return std::min({HostAvailable(), GroupAvailable(), AddressesAvailable()}); }

uint64_t MemoryToUse(uint64_t wanted) { return wanted > 0 ? wanted : AvailableMemory() / 2; }

}  // namespace weightcast
