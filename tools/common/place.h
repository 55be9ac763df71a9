#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/command.h"
#include "tools/common/device_block.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Where a rank's shards lie.
struct ShardPlace {
  std::string kind = "host";  ///< As the flag --memory has it, but for "mixed".
  int64_t device = 0;
  bool exact = false;  ///< There must be such a device; otherwise it is counted round those that there are.
};

/// Memory for `bytes` there, which is not the host's. Errors: DeviceBlock::Make's; kInvalidArgument where
/// there is no such device.
Result<std::shared_ptr<DeviceBlock>> MakeBlock(const ShardPlace& place, const Settings& settings,
                                               size_t bytes);

/// A GPU's number as a user gives it to `flag`. Errors: kInvalidArgument.
Result<uint32_t> ParseDevice(std::string_view flag, const std::string& text);

/// The flags --memory and --device of a command that is one rank.
class PlaceFlags {
 public:
  /// `more`: what else --help says of --memory.
  void Declare(Flags& flags, std::string_view more);
  /// Errors: kInvalidArgument for a device that is no number, or beside host memory.
  [[nodiscard]] Result<ShardPlace> Parse() const;

 private:
  std::string memory_ = "host";
  std::string device_;
};

}  // namespace weightcast::tools
