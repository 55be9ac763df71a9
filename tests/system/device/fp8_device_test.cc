// The rule `quantise` with tensors on devices of the fake driver: their kernels quantise.
#include <gtest/gtest.h>

#include "system/device/worker_scene.h"
#include "system/fp8_scene.h"
#include "trace/metrics.h"

namespace weightcast {
namespace {

class Fp8Device : public WorkerScene {
 protected:
  test::Fp8Memory Calls() {
    return {.allocate = [this](size_t bytes) { return Allocate(bytes); },
            .write = [this](const Memory& to, auto bytes) { devices.Write(to, 0, bytes); },
            .read = [this](const Memory& from, auto bytes) { devices.Read(from, 0, bytes); }};
  }
  void Run(test::Fp8Scene scene, const WorkerOptions& options) {
    test::Fp8Run(std::move(scene), options, Calls()).Go();
    FreeAll();
  }
};

/// A machine for each, and one engine: a process has only so many streams.
class Fp8DeviceScenes : public Fp8Device, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(Fp8DeviceScenes, GiveTheBytesOfTheReference) {
  auto scene = test::RandomFp8Scene(GetParam());
  if (scene.rows == test::Fp8Scene::Rows::kTransposed) scene.rows = test::Fp8Scene::Rows::kPadded;
  scene.engines = 1;
  const uint64_t kernels = Counted("gpu.kernels");
  const uint64_t on_host = Counted("gpu.host_casts");
  Run(std::move(scene), Options());
  EXPECT_GT(Counted("gpu.kernels"), kernels);
  EXPECT_EQ(Counted("gpu.host_casts"), on_host);
}

INSTANTIATE_TEST_SUITE_P(Random, Fp8DeviceScenes, ::testing::Range(0U, 6U));

/// Columns that are contiguous: no kernel takes them, so they pass through the host.
TEST_F(Fp8Device, ColumnsAreQuantisedOnTheHost) {
  const Shape shape = {300, 200};
  const uint64_t on_host = Counted("gpu.host_casts");
  Run({.shape = shape,
       .dtype = DType::kF32,
       .trainers = {{WholeOf(shape)}},
       .values = {{WholeOf(shape)}},
       .scales = {{WholeOf({3, 2})}},
       .rows = test::Fp8Scene::Rows::kTransposed},
      Options());
  EXPECT_GT(Counted("gpu.host_casts"), on_host);
}

TEST_F(Fp8Device, AllIsQuantisedOnTheHostWhereKernelsAreOff) {
  const Shape shape = {300, 500};
  WorkerOptions options = Options();
  options.settings["gpu_kernels"] = "0";
  const uint64_t on_host = Counted("gpu.host_casts");
  Run({.shape = shape,
       .trainers = {{WholeOf(shape)}},
       .values = {{test::CutAtBlocks(shape, 1, 2)[0]}, {test::CutAtBlocks(shape, 1, 2)[1]}},
       .scales = {{WholeOf({3, 4})}, {WholeOf({3, 4})}}},
      options);
  EXPECT_GT(Counted("gpu.host_casts"), on_host);
}

}  // namespace
}  // namespace weightcast
