// The setting `compare` and digests of tensors on devices, on the fake driver: what has landed is what was
// sent.
#include <gmock/gmock.h>

#include <atomic>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "digest/digest.h"
#include "fake_cuda/fake_cuda.h"
#include "system/device/worker_scene.h"
#include "trace/metrics.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kComparedRows = 300;
constexpr int64_t kComparedColumns = 170;
constexpr int64_t kPlain = 9'000'001;  ///< Several transfers; the last byte is alone in its lane.
constexpr int64_t kHost = 5000;

/// A trainer whose tensors lie on device 0: fp32 in columns that lands as bf16 in rows, one that goes as it
/// lies, one that goes from its device to host memory, and one the other way round.
class Mixed : public WorkerScene {
 protected:
  WorkerOptions With(const std::string& transport, const char* kernels = "1") const {
    WorkerOptions options = Options();
    options.settings["transport"] = transport;
    options.settings["compare"] = "1";
    options.settings["gpu_kernels"] = kernels;
    return options;
  }
  void MakeTrainer(WorkerOptions options) {
    matrix = Allocate(kComparedRows * kComparedColumns * 4);
    matrix_there = Allocate(kComparedRows * kComparedColumns * 2);
    plain = Allocate(kPlain);
    plain_there = Allocate(kPlain);
    to_host = Allocate(kHost);
    from_host_there = Allocate(kHost);
    Shard transposed = Whole("matrix", DType::kF32, {kComparedRows, kComparedColumns}, matrix);
    transposed.strides = {1, kComparedRows};
    auto made = Trainer::Connect(std::move(options));
    transport::Require(made.ok(), made.status().message());
    trainer = std::move(*made);
    const Status registered =
        trainer->Register({.shards = {transposed, Whole("plain", DType::kU8, {kPlain}, plain),
                                      Whole("to_host", DType::kU8, {kHost}, to_host),
                                      Whole("from_host", DType::kU8, {kHost}, HostMemory(from_host))}},
                          {});
    transport::Require(registered.ok(), registered.message());
  }
  [[nodiscard]] std::vector<Shard> EnginesShards() {
    return {Whole("matrix", DType::kBF16, {kComparedRows, kComparedColumns}, matrix_there),
            Whole("plain", DType::kU8, {kPlain}, plain_there),
            Whole("to_host", DType::kU8, {kHost}, HostMemory(to_host_there)),
            Whole("from_host", DType::kU8, {kHost}, from_host_there)};
  }
  void MakeEngine(WorkerOptions options, LandingMode landing) {
    options.engine = "rollout";
    auto made = Inference::Connect(std::move(options));
    transport::Require(made.ok(), made.status().message());
    engine = std::move(*made);
    LandingOptions how{.landing = landing};
    if (landing == LandingMode::kLoader) how.on_switch = [](const Version&) { return Status::Ok(); };
    const Status registered = engine->Register({.shards = EnginesShards()}, how);
    transport::Require(registered.ok(), registered.message());
  }
  void Fill(int64_t number) {
    std::vector<float> values(kComparedRows * kComparedColumns);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>((i * 7 + static_cast<size_t>(number)) % 251) - 100;
    devices.Write(matrix, 0, std::as_bytes(std::span(values)));
    for (size_t i = 0; i < sent.size(); ++i)
      sent[i] = static_cast<std::byte>(i % 239 + i / 1000 * 3 + number);
    devices.Write(plain, 0, sent);
    devices.Write(to_host, 0, std::span(sent).first(kHost));
    std::copy_n(sent.begin(), kHost, from_host.begin());
  }
  /// One version; at its end the engine has compared all four tensors.
  void Compared(int64_t number) {
    Fill(number);
    const auto update = trainer->Publish(number);
    ASSERT_TRUE(update.ok()) << update.status().ToString();
    const auto version = engine->Wait(engine->version(), In(60));
    ASSERT_TRUE(version.ok()) << version.status().ToString();
    const auto stats = (*update)->Wait(In(60));
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    EXPECT_EQ(stats->receivers.at(0).compared, 4U);
    std::vector<std::byte> landed(kPlain);
    devices.Read(plain_there, 0, landed);
    EXPECT_EQ(landed, sent);
    EXPECT_TRUE(std::equal(to_host_there.begin(), to_host_there.end(), sent.begin()));
  }
  void TearDown() override {
    if (engine != nullptr) engine->Close();
    if (trainer != nullptr) trainer->Close();
    engine.reset();
    trainer.reset();
    FreeAll();
  }

  Memory matrix;
  Memory matrix_there;
  Memory plain;
  Memory plain_there;
  Memory to_host;
  Memory from_host_there;
  std::vector<std::byte> from_host = std::vector<std::byte>(kHost);
  std::vector<std::byte> to_host_there = std::vector<std::byte>(kHost);
  std::vector<std::byte> sent = std::vector<std::byte>(kPlain);
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Inference> engine;
};

class CompareDevice : public Mixed,
                      public ::testing::WithParamInterface<std::tuple<const char*, LandingMode>> {};

TEST_P(CompareDevice, WhatHasLandedIsWhatWasSent) {
  const auto& [transport, landing] = GetParam();
  MakeTrainer(With(transport));
  MakeEngine(With(transport), landing);
  const uint64_t kernels = Counted("gpu.kernels");
  const uint64_t by_host = Counted("gpu.host_digests");
  for (int64_t number = 1; number <= 3; ++number) Compared(number);
  EXPECT_GE(Counted("gpu.kernels") - kernels, 3 * 8U);
  EXPECT_EQ(Counted("gpu.host_digests"), by_host);
}

std::string NameOf(const ::testing::TestParamInfo<CompareDevice::ParamType>& info) {
  constexpr const char* kLandings[] = {"in_place", "shadow", "loader"};
  return std::string(std::get<0>(info.param)) + "_" + kLandings[static_cast<size_t>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(All, CompareDevice,
                         ::testing::Combine(::testing::Values("shm", "tcp"),
                                            ::testing::Values(LandingMode::kInPlace, LandingMode::kShadow,
                                                              LandingMode::kLoader)),
                         NameOf);

class CompareOneDevice : public Mixed {};

TEST_F(CompareOneDevice, WithoutKernelsTheHostDigests) {
  MakeTrainer(With("shm", "0"));
  MakeEngine(With("shm", "0"), LandingMode::kShadow);
  const uint64_t kernels = Counted("gpu.kernels");
  const uint64_t by_host = Counted("gpu.host_digests");
  Compared(1);
  EXPECT_EQ(Counted("gpu.kernels"), kernels);
  EXPECT_GT(Counted("gpu.host_digests"), by_host);
}

/// Writes one byte of the engine's memory again and again while it exists.
class Planting {
 public:
  Planting(transport::DevicesInUse& devices, const Memory& memory)
      : thread_([this, &devices, memory] {
          for (int value = 0; !over_; ++value)
            devices.Set(memory, memory.length - 1, static_cast<std::byte>(value), 1);
        }) {}
  Planting(const Planting&) = delete;
  Planting& operator=(const Planting&) = delete;
  ~Planting() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST_F(CompareOneDevice, OneWrongByteIsFoundByName) {
  MakeTrainer(With("shm"));
  MakeEngine(With("shm"), LandingMode::kInPlace);
  Compared(1);
  Status outcome;
  {
    const Planting planting(devices, plain_there);
    std::atomic<bool> over{false};
    std::thread engine_thread([&] {
      while (!over) std::ignore = engine->Wait(engine->version(), In(0.2));
    });
    // It may land, and be digested, while the other thread has no processor.
    for (int64_t number = 2; outcome.ok() && number < 50; ++number)
      outcome = (*trainer->Publish(number))->Wait(In(60)).status();
    over = true;
    engine_thread.join();
  }
  EXPECT_EQ(outcome.code(), Code::kCorrupt) << outcome.ToString();
  EXPECT_THAT(outcome.message(), HasSubstr("tensor plain at this rank is not what trainer 0"));
  EXPECT_THAT(outcome.message(), HasSubstr("1 of 4 tensors"));
}

/// The spare copy is right, and what is made of it is not.
TEST_F(CompareOneDevice, OneWrongByteOfTheLiveTensorIsFound) {
  MakeTrainer(With("shm"));
  MakeEngine(With("shm"), LandingMode::kShadow);
  Compared(1);
  Status outcome;
  {
    const Planting planting(devices, plain_there);
    for (int64_t number = 2; outcome.ok() && number < 50; ++number) {
      ASSERT_TRUE(trainer->Publish(number).ok());
      outcome = engine->Wait(engine->version(), In(60)).status();
    }
  }
  EXPECT_EQ(outcome.code(), Code::kCorrupt) << outcome.ToString();
  EXPECT_THAT(outcome.message(), HasSubstr("tensor plain changed while it was copied"));
}

/// A way between two devices that lies only after it was tried.
TEST_F(CompareOneDevice, BytesOfALyingWayAreFound) {
  MakeTrainer(With("shm"));
  MakeEngine(With("shm"), LandingMode::kInPlace);
  Compared(1);
  fake_cuda_peer(0, 1, 2);
  fake_cuda_peer(1, 0, 2);
  Fill(2);
  const auto update = trainer->Publish(2);
  ASSERT_TRUE(update.ok());
  EXPECT_EQ(engine->Wait(engine->version(), In(60)).status().code(), Code::kCorrupt);
  const Status outcome = (*update)->Wait(In(60)).status();
  EXPECT_EQ(outcome.code(), Code::kCorrupt) << outcome.ToString();
  EXPECT_THAT(outcome.message(), HasSubstr("at this rank is not what trainer 0 had when it sent it"));
}

TEST_F(CompareOneDevice, AnEngineThatIsFilledByAnotherCompares) {
  MakeTrainer(With("shm"));
  MakeEngine(With("shm"), LandingMode::kInPlace);
  Fill(1);
  const auto update = trainer->Publish(1, Hold::kUntilNext);
  ASSERT_TRUE(engine->Wait({}, In(60)).ok());
  ASSERT_TRUE((*update)->Wait(In(60)).ok());
  WorkerOptions options = With("shm");
  options.engine = "late";
  auto late = Inference::Connect(std::move(options)).value();
  const Memory own = Allocate(kPlain);
  std::vector<Shard> shards = EnginesShards();
  for (size_t i : {size_t{0}, size_t{2}, size_t{3}}) shards[i].memory = Allocate(shards[i].memory.length);
  shards[1].memory = own;
  ASSERT_TRUE(late->Register({.shards = shards}, {.landing = LandingMode::kInPlace}).ok());
  const auto version = late->Wait({}, In(60));
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  std::vector<std::byte> landed(kPlain);
  devices.Read(own, 0, landed);
  EXPECT_EQ(landed, sent);
  EXPECT_EQ(late->Digest().value(), engine->Digest().value());
  late->Close();
}

/// Each device has the kernel, or its bytes come to the host: the digests are the same.
TEST_F(CompareOneDevice, DigestsAreThoseOfTheHost) {
  MakeTrainer(With("shm"));
  Fill(1);
  const uint64_t by_host = Counted("gpu.host_digests");
  const auto by_kernels = trainer->Digest();
  ASSERT_TRUE(by_kernels.ok()) << by_kernels.status().ToString();
  EXPECT_EQ(Counted("gpu.host_digests"), by_host);
  fake_cuda_fail(0, "cuLaunchKernel", 2, drivers::CUDA_ERROR_OUT_OF_MEMORY);
  const auto by_way_of_host = trainer->Digest();
  ASSERT_TRUE(by_way_of_host.ok()) << by_way_of_host.status().ToString();
  EXPECT_GT(Counted("gpu.host_digests"), by_host);
  EXPECT_EQ(*by_way_of_host, *by_kernels);
  const auto key = digest::TensorKey::Of({"plain", DType::kU8, {kPlain}}).value();
  EXPECT_EQ((*by_kernels)[1].digest, key.DigestOf(WholeOf({kPlain}), sent.data()).value());
}

}  // namespace
}  // namespace weightcast
