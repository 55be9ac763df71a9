// Whole updates between trainers and engines whose tensors lie in device memory, over the fake NICs.
#include <gmock/gmock.h>

#include <bit>

#include "fake_cuda/fake_cuda.h"
#include "system/device/worker_scene.h"
#include "system/device_verbs/nics.h"
#include "trace/metrics.h"

namespace weightcast {
namespace {

constexpr size_t kUpdateSize = size_t{4} << 20;
constexpr int64_t kCount = 30001;

uint64_t Counted(std::string_view name) { return trace::CounterNamed(name).value(); }

std::vector<std::byte> BytesOf(int64_t version) {
  std::vector<std::byte> bytes(kUpdateSize);
  for (size_t i = 0; i < kUpdateSize; ++i)
    bytes[i] = static_cast<std::byte>(static_cast<size_t>(version) * 31 + i % 251 + i / 4096);
  return bytes;
}

class UpdateVerbs : public WorkerScene, public ::testing::WithParamInterface<LandingMode> {
 protected:
  void TearDown() override {
    NicsOfTheNext() = TwoNics(true);
    if (inference != nullptr) inference->Close();
    if (trainer != nullptr) trainer->Close();
    inference.reset();
    trainer.reset();
    EXPECT_EQ(fake_cuda_live(-1).dmabufs, 0U);
    EXPECT_EQ(fake_cuda_live(-1).torn, 0U);
    FreeAll();
  }
  [[nodiscard]] WorkerOptions Over(const std::string& transport, const std::string& engine = "") const {
    WorkerOptions options = Options();
    options.engine = engine;
    options.settings["transport"] = transport;
    return options;
  }
  /// One tensor as it lies; another is cast on the way.
  void Begin(const std::string& transport, LandingMode landing) {
    source = Allocate(kUpdateSize);
    target = Allocate(kUpdateSize);
    floats = Allocate(kCount * sizeof(float));
    halves = Allocate(kCount * 2);
    auto made = Trainer::Connect(Over(transport));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    trainer = std::move(*made);
    ASSERT_TRUE(trainer
                    ->Register({.shards = {Whole("w", DType::kU8, {int64_t{kUpdateSize}}, source),
                                           Whole("cast", DType::kF32, {kCount}, floats)}},
                               {})
                    .ok());
    auto engine = Inference::Connect(Over(transport, "rollout"));
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    inference = std::move(*engine);
    ASSERT_TRUE(inference
                    ->Register({.shards = {Whole("w", DType::kU8, {int64_t{kUpdateSize}}, target),
                                           Whole("cast", DType::kBF16, {kCount}, halves)}},
                               {.landing = landing})
                    .ok());
  }
  void Send(int64_t version) {
    std::vector<float> values(kCount);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % 101) - static_cast<float>(version);
    devices.Write(source, 0, BytesOf(version));
    devices.Write(floats, 0, std::as_bytes(std::span(values)));
    Move(*trainer, *inference, version);
    std::vector<std::byte> landed(kUpdateSize);
    devices.Read(target, 0, landed);
    EXPECT_TRUE(landed == BytesOf(version)) << "version " << version << " is not bit-exact";
    std::vector<uint16_t> cast(kCount);
    devices.Read(halves, 0, std::as_writable_bytes(std::span(cast)));
    for (size_t i = 0; i < cast.size(); ++i)  // Whole numbers as small fit into bf16.
      ASSERT_EQ(cast[i], std::bit_cast<uint32_t>(values[i]) >> 16) << i;
  }

  Memory source, target, floats, halves;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Inference> inference;
};

TEST_P(UpdateVerbs, LandsBitExactWithoutBytesInHostMemory) {
  Begin("verbs", GetParam());
  const uint64_t on_host = Counted("gpu.host_casts");
  const uint64_t staged = Counted("gpu.staged_bytes");
  for (int64_t version = 1; version < 4 && !HasFailure(); ++version) Send(version);
  EXPECT_EQ(Counted("gpu.host_casts"), on_host);
  EXPECT_EQ(Counted("gpu.staged_bytes"), staged);
}

/// The engine's memory is freed while it sleeps, and other memory comes back at its address.
TEST_P(UpdateVerbs, AnEngineSleepsWithoutItsMemory) {
  Begin("verbs", GetParam());
  Send(1);
  for (int64_t version = 2; version < 6 && !HasFailure(); ++version) {
    const Status slept = inference->Suspend(In(60));
    ASSERT_TRUE(slept.ok()) << slept.ToString();
    {
      const transport::CurrentContext current(devices.cuda(), devices.context(target.device));
      const auto address = reinterpret_cast<drivers::CUdeviceptr>(target.address);
      ASSERT_EQ(devices.cuda().MemFree(address), 0);
      drivers::CUdeviceptr again = 0;
      ASSERT_EQ(devices.cuda().MemAlloc(&again, kUpdateSize), 0);
      ASSERT_EQ(again, address);
    }
    const Status resumed = inference->Resume();
    ASSERT_TRUE(resumed.ok()) << resumed.ToString();
    Send(version);
    EXPECT_EQ(fake_cuda_live(-1).torn, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Landings, UpdateVerbs,
                         ::testing::Values(LandingMode::kInPlace, LandingMode::kShadow),
                         [](const auto& tested) {
                           return std::string(tested.param == LandingMode::kInPlace ? "InPlace" : "Shadow");
                         });

using UpdateWithoutDmaBuf = UpdateVerbs;

/// Nothing but a warning tells that the NICs do not take part.
TEST_P(UpdateWithoutDmaBuf, GoesOverTcp) {
  NicsOfTheNext() = TwoNics(false);
  testing::internal::CaptureStderr();
  Begin("", LandingMode::kInPlace);
  Send(1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), ::testing::HasSubstr("do without verbs"));
}

INSTANTIATE_TEST_SUITE_P(Landings, UpdateWithoutDmaBuf, ::testing::Values(LandingMode::kInPlace));

}  // namespace
}  // namespace weightcast
