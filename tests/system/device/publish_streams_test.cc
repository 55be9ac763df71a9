// Versions that are published while a stream still writes the tensors, on the fake driver.
#include <gmock/gmock.h>

#include <algorithm>

#include "fake_cuda/fake_cuda.h"
#include "system/device/worker_scene.h"
#include "system/waiting_engine.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;
using transport::CurrentContext;

constexpr int64_t kPublishedCount = 70'001;
/// A trainer on the first device, of which one tensor is cast, and an engine on the second.
class PublishStreams : public WorkerScene {
 protected:
  PublishStreams() {
    plain = Allocate(kPublishedCount);
    plain_there = Allocate(kPublishedCount);
    cast = Allocate(kPublishedCount * 4);
    cast_there = Allocate(kPublishedCount * 2);
    transport::Require(plain.device == cast.device && plain.device != plain_there.device, "the devices");
    const CurrentContext current(devices.cuda(), devices.context(plain.device));
    transport::Require(
        devices.cuda().StreamCreateWithPriority(&stream, drivers::CU_STREAM_NON_BLOCKING, 0) == 0,
        "cuStreamCreateWithPriority");
    trainer = ConnectTrainer();
    const Status here = trainer->Register({.shards = {Whole("plain", DType::kU8, {kPublishedCount}, plain),
                                                      Whole("cast", DType::kF32, {kPublishedCount}, cast)}},
                                          {});
    engine = ConnectInference();
    const Status there =
        engine->Register({.shards = {Whole("plain", DType::kU8, {kPublishedCount}, plain_there),
                                     Whole("cast", DType::kBF16, {kPublishedCount}, cast_there)}},
                         {});
    transport::Require(here.ok() && there.ok(), "Register");
  }
  ~PublishStreams() override {
    fake_cuda_release(-1);
    if (engine != nullptr) engine->Close();
    if (trainer != nullptr) trainer->Close();
    engine.reset();
    trainer.reset();
    {
      const CurrentContext current(devices.cuda(), devices.context(plain.device));
      devices.cuda().StreamDestroy(stream);
    }
    FreeAll();
  }
  /// Leaves it in the stream.
  void Write(uint8_t value) {
    const CurrentContext current(devices.cuda(), devices.context(plain.device));
    for (const Memory& memory : {plain, cast}) {
      const auto at = reinterpret_cast<drivers::CUdeviceptr>(memory.address);
      ASSERT_EQ(devices.cuda().MemsetD8Async(at, value, memory.length, stream), drivers::CUDA_SUCCESS);
    }
  }
  Result<std::shared_ptr<Update>> Publish(int64_t number) {
    const StreamRef ref{.device = plain.device, .stream = stream};
    return trainer->Publish(number, Hold::kUntilReady, "", {&ref, 1});
  }
  /// Every byte of both tensors: a float of equal bytes is cut in half by the cast.
  void ExpectLanded(uint8_t value) {
    for (const Memory& memory : {plain_there, cast_there}) {
      std::vector<std::byte> landed(memory.length);
      devices.Read(memory, 0, landed);
      EXPECT_EQ(std::ranges::count(landed, std::byte{value}), static_cast<int64_t>(landed.size()));
    }
  }

  Memory plain;
  Memory plain_there;
  Memory cast;
  Memory cast_there;
  drivers::CUstream stream{};
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<Inference> engine;
};

/// The engine's device, which pulls, is not held: what it got it would have.
TEST_F(PublishStreams, NothingIsReadBeforeTheStreamIsSoFar) {
  for (int64_t number = 1; number <= 3; ++number) {
    const auto value = static_cast<uint8_t>(0x10 + number);  // Below half of the next: it is not rounded up.
    fake_cuda_hold(plain.device);
    Write(value);
    const auto update = Publish(number);
    ASSERT_TRUE(update.ok()) << update.status().ToString();
    auto waiting = test::WaitInThread(*engine);
    EXPECT_TRUE(test::StillWaits(waiting));
    EXPECT_EQ((*update)->WaitSources(Clock::now()).code(), Code::kTimedOut);
    fake_cuda_release(plain.device);
    const auto version = waiting.get();
    ASSERT_TRUE(version.ok()) << version.status().ToString();
    EXPECT_EQ(version->number, number);
    EXPECT_TRUE((*update)->WaitSources(In(60)).ok());
    ASSERT_TRUE((*update)->Wait(In(60)).ok());
    ExpectLanded(value);
  }
}

TEST_F(PublishStreams, AStreamThatIsCapturedIsRefusedAndTheNextIsNot) {
  {
    const CurrentContext current(devices.cuda(), devices.context(plain.device));
    ASSERT_EQ(fake_cuda_capture(stream, 1), 0);
  }
  const auto refused = Publish(1);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("CUDA graph"));
  {
    const CurrentContext current(devices.cuda(), devices.context(plain.device));
    ASSERT_EQ(fake_cuda_capture(stream, 0), 0) << "the capture ends well";
  }
  Write(0x11);
  const auto update = Publish(1);
  ASSERT_TRUE(update.ok()) << update.status().ToString();
  ASSERT_TRUE(engine->Wait(engine->version(), In(60)).ok());
  ASSERT_TRUE((*update)->Wait(In(60)).ok());
  ExpectLanded(0x11);
}

TEST_F(PublishStreams, CloseWaitsForNoStream) {
  fake_cuda_hold(plain.device);
  Write(0x11);
  const auto update = Publish(1);
  ASSERT_TRUE(update.ok()) << update.status().ToString();
  auto waiting = test::WaitInThread(*engine);
  // The engine has granted meanwhile, and the trainer was told to send.
  EXPECT_TRUE(test::StillWaits(waiting));
  trainer->Close();  // Returns.
  EXPECT_FALSE((*update)->Wait(In(60)).ok());
  EXPECT_FALSE(waiting.get().ok());
}

TEST_F(PublishStreams, ACancelledUpdateFreesItsSources) {
  fake_cuda_hold(plain.device);
  Write(0x11);
  const auto update = Publish(1);
  ASSERT_TRUE(update.ok()) << update.status().ToString();
  auto waiting = test::WaitInThread(*engine);
  EXPECT_TRUE(test::StillWaits(waiting));
  (*update)->Cancel();
  EXPECT_NE((*update)->WaitSources(In(60)).code(), Code::kTimedOut) << "nothing reads them";
  EXPECT_FALSE(waiting.get().ok());
  fake_cuda_release(plain.device);
  Write(0x12);
  const auto next = Publish(2);
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  ASSERT_TRUE(engine->Wait(engine->version(), In(60)).ok());
  ASSERT_TRUE((*next)->Wait(In(60)).ok());
  ExpectLanded(0x12);
}

TEST_F(PublishStreams, ALostContextEndsTheUpdateWithTheDriversWords) {
  devices.ExpectLeftovers();
  fake_cuda_hold(plain.device);
  Write(0x11);
  const auto update = Publish(1);
  ASSERT_TRUE(update.ok()) << update.status().ToString();
  auto waiting = test::WaitInThread(*engine);
  EXPECT_TRUE(test::StillWaits(waiting));
  fake_cuda_lose(-1, plain.device, drivers::CUDA_ERROR_LAUNCH_FAILED, 0);
  fake_cuda_release(plain.device);
  EXPECT_FALSE(waiting.get().ok());
  const auto done = (*update)->Wait(In(60));
  ASSERT_FALSE(done.ok());
  EXPECT_THAT(done.status().message(), HasSubstr("719"));
}

}  // namespace
}  // namespace weightcast
