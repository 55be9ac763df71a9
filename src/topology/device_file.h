#pragma once

#include <infiniband/verbs.h>

#include <string>
#include <string_view>

namespace weightcast::topology {

/// Why ibv_open_device failed with `error`, and what to do. libibverbs says that there is no such file where
/// this user may not open it, so we look ourselves. `folder`: of the device files; a test has its own.
std::string ReasonNotOpened(const ibv_device& device, int error, std::string_view folder = "/dev/infiniband");

}  // namespace weightcast::topology
