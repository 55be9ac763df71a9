#pragma once

#include <gtest/gtest.h>

#include <variant>

#include "device/kernels.h"
#include "kernels/host_kernels.h"

namespace weightcast::worker {

/// As the device would run it.
inline void RunOnHost(const device::Launch& launch) {
  const auto* const kernel = kernels::FindHostKernel(launch.kernel);
  ASSERT_NE(kernel, nullptr) << launch.kernel;
  auto parameters = launch.parameters;
  void* at = std::visit([](auto& each) { return static_cast<void*>(&each); }, parameters);
  kernel->run({.blocks = launch.blocks, .threads = launch.threads}, &at);
}

}  // namespace weightcast::worker
