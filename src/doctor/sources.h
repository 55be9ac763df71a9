#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/inventory.h"
#include "drivers/ibverbs/ibverbs.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::doctor {

/// Where the gatherers look. A test has a folder for `root`, and its own of everything that is not a file.
struct Sources {
  std::filesystem::path root = "/";
  std::map<std::string, std::string> environment = {};
  Settings settings = {};
  bool check_route = false;  ///< To settings.controller.
  std::string clock = {};    ///< host:port of an HTTP server whose Date is trusted; empty: none.
  std::string host_name = {};
  std::string kernel = {};
  std::map<std::string, std::vector<std::string>> addresses = {};  ///< By interface.
  int64_t descriptors = -1;    ///< Limits of this process and of /dev/shm;
  int64_t memlock_bytes = -1;  ///< kUnknown, kNoLimit.
  int64_t shm_bytes = -1;
  bool run_dcb = false;
  std::function<Result<std::shared_ptr<drivers::Ibverbs>>()> verbs = {};
  std::function<device::Inventory(const Settings&)> cuda = {};
};

/// Those of this process and this machine.
Sources LocalSources(const Settings& settings);

}  // namespace weightcast::doctor
