#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "counters/reading.h"
#include "drivers/nvml/nvml.h"
#include "weightcast/status.h"

namespace weightcast::counters {

/// Where the reader looks. A test has a folder for `root`, and its own of what is not a file.
struct Sources {
  std::filesystem::path root = "/";
  /// What a driver counts beside the kernel, by the names of `ethtool -S`; empty: nothing.
  std::function<std::map<std::string, uint64_t>(const std::string& interface)> driver = {};
  std::function<Result<std::shared_ptr<drivers::Nvml>>()> nvml = {};
};
/// This machine's, within the network namespace of this process.
Sources LocalSources();

/// Reads the counters of NICs, RDMA ports, TCP and NVLink. One thread.
class Reader {
 public:
  explicit Reader(Sources sources);

  /// What cannot be read is left out, and said in Troubles.
  Reading Read();
  /// What could not be read, with the remedy: each file once, those since the last call.
  std::vector<std::string> Troubles();
  /// Why there is no NVLink; empty: there is.
  [[nodiscard]] const std::string& no_nvlink() const { return no_nvlink_; }

 private:
  using Path = std::filesystem::path;
  std::optional<Count> ReadCount(const Path& file, uint64_t unit = 1);
  /// The sum of those that exist; nullopt: none does.
  std::optional<Count> Sum(const Path& folder, std::initializer_list<const char*> names);
  Device ReadInterface(const std::string& name);
  Device ReadPort(const std::string& device, const std::string& port);
  void ReadTcp(Reading& reading);
  void ReadNvlink(Reading& reading);
  void Complain(const std::string& what, std::string text);

  Sources sources_;
  std::shared_ptr<drivers::Nvml> nvml_;
  std::string no_nvlink_;
  std::set<std::string> complained_;
  std::vector<std::string> troubles_;
};

}  // namespace weightcast::counters
