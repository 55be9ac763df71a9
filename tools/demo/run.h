#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/demo/options.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// One version on its way from all trainers to all inference ranks.
struct DemoUpdate {
  int64_t version = 0;
  double seconds = 0;  ///< From the first grant request until every rank had every byte.
  uint64_t bytes = 0;
  std::vector<uint64_t> sender_bytes;  ///< By trainer rank; of many the slowest.
  [[nodiscard]] double gb_per_s() const {
    return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
  }
};

struct DemoReport {
  std::string transport;  ///< What the connections really used; several joined by '+'.
  int64_t tensors = 0;
  int64_t bytes_per_replica = 0;
  std::vector<DemoUpdate> updates;  ///< Each verified: an update that is not bit-exact is an error.
};

/// What the one who runs a demo wants to hear meanwhile; both may be empty.
struct DemoWatcher {
  std::function<void(std::string_view line)> on_line;               ///< Something to tell.
  std::function<void(double part, std::string_view text)> on_step;  ///< 0 to 1.
};

/// Runs controller, trainers and inference ranks as processes of their own, publishes every version
/// and has each inference rank compare each byte of it with the formula. Blocks until all have ended.
/// Errors: kExhausted when it would not fit into memory; whatever went wrong in a process, with its
/// name and the path of its log; the temporary folder with the logs is kept then, or with `keep`.
Result<DemoReport> RunDemo(const Context& context, const DemoOptions& options, bool keep,
                           const DemoWatcher& watcher);

}  // namespace weightcast::tools
