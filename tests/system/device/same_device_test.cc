// Trainer and engine whose tensors lie on one device, as colocated ones do.
#include <algorithm>

#include "fake_cuda/fake_cuda.h"
#include "system/device/worker_scene.h"
#include "trace/metrics.h"

namespace weightcast {
namespace {

constexpr int64_t kSharedCount = (int64_t{9} << 20) + 13;

class SameDevice : public WorkerScene, public ::testing::WithParamInterface<LandingMode> {
 protected:
  SameDevice() {
    source = Allocate(kSharedCount);
    Allocate(1);  // Of the other device: they take turns.
    target = Allocate(kSharedCount);
    transport::Require(source.device == target.device, "one device");
    trainer = ConnectTrainer();
    const Status here = trainer->Register({.shards = {Whole("w", DType::kU8, {kSharedCount}, source)}}, {});
    engine = ConnectInference();
    const Status there = engine->Register({.shards = {Whole("w", DType::kU8, {kSharedCount}, target)}},
                                          {.landing = GetParam()});
    transport::Require(here.ok() && there.ok(), "Register");
  }
  ~SameDevice() override {
    engine.reset();
    trainer.reset();
    FreeAll();
  }
  void Hand(int64_t number) {
    devices.Set(source, 0, std::byte(number), kSharedCount);
    Move(*trainer, *engine, number);
    std::vector<std::byte> landed(kSharedCount);
    devices.Read(target, 0, landed);
    EXPECT_EQ(std::ranges::count(landed, std::byte(number)), kSharedCount);
  }

  Memory source;
  Memory target;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Inference> engine;
};

/// With shadow landing once more, into the live tensors, by cuMemcpy.
TEST_P(SameDevice, EachByteIsCopiedOnceAndNoMemoryIsTaken) {
  Hand(1);
  const auto bytes = [] { return trace::CounterNamed("gpu.bytes").value(); };
  const auto copies = [] { return trace::CounterNamed("gpu.copies").value(); };
  const uint64_t copied = bytes();
  const uint64_t made = copies();
  const uint64_t allocations = fake_cuda_calls("cuMemAlloc");
  const uint64_t mappings = fake_cuda_calls("cuIpcOpenMemHandle");
  for (int64_t number = 2; number <= 4; ++number) Hand(number);
  EXPECT_EQ(bytes() - copied, 3 * kSharedCount);
  EXPECT_EQ(copies() - made, 3U) << "both transfers of an update are one write, and that is one copy";
  EXPECT_EQ(fake_cuda_calls("cuMemAlloc"), allocations);
  EXPECT_EQ(fake_cuda_calls("cuIpcOpenMemHandle"), mappings);
}

INSTANTIATE_TEST_SUITE_P(Landings, SameDevice, testing::Values(LandingMode::kInPlace, LandingMode::kShadow),
                         [](const auto& each) {
                           return each.param == LandingMode::kInPlace ? "InPlace" : "Shadow";
                         });

}  // namespace
}  // namespace weightcast
