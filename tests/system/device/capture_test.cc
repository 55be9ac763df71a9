// Streams that another thread captures into a CUDA graph, while updates of device memory run.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "system/device/worker_scene.h"

namespace weightcast {
namespace {

using transport::CurrentContext;

constexpr size_t kCapturedSize = size_t{1} << 20;

/// Captures in the global mode again and again, as an engine does that warms up; counts the captures that end
/// well, and those that something has made void.
class Capturer {
 public:
  Capturer(transport::DevicesInUse& devices, int device) : devices_(devices), device_(device) {
    const CurrentContext current(devices.cuda(), devices.context(device));
    transport::Require(
        devices.cuda().StreamCreateWithPriority(&stream_, drivers::CU_STREAM_NON_BLOCKING, 0) == 0,
        "cuStreamCreateWithPriority");
    thread_ = std::thread([this] { Run(); });
  }
  Capturer(const Capturer&) = delete;
  Capturer& operator=(const Capturer&) = delete;
  ~Capturer() {
    over_ = true;
    thread_.join();
    const CurrentContext current(devices_.cuda(), devices_.context(device_));
    devices_.cuda().StreamDestroy(stream_);
  }
  [[nodiscard]] int good() const { return good_; }
  [[nodiscard]] int spoilt() const { return spoilt_; }
  /// A capture runs for as long as this is set.
  std::atomic<bool> hold{false};
  [[nodiscard]] bool capturing() const { return capturing_; }

 private:
  void Run() {
    drivers::CUcontext popped{};
    devices_.cuda().CtxPushCurrent(devices_.context(device_));
    while (!over_) {
      transport::Require(fake_cuda_capture(stream_, 1) == 0, "the capture does not begin");
      capturing_ = true;
      do {
        std::this_thread::yield();
      } while (hold && !over_);
      capturing_ = false;
      ++(fake_cuda_capture(stream_, 0) == 0 ? good_ : spoilt_);
    }
    devices_.cuda().CtxPopCurrent(&popped);
  }

  transport::DevicesInUse& devices_;
  const int device_;
  drivers::CUstream stream_{};
  std::atomic<bool> over_{false};
  std::atomic<bool> capturing_{false};
  std::atomic<int> good_{0};
  std::atomic<int> spoilt_{0};
  std::thread thread_;
};

class CaptureDevice : public WorkerScene, public ::testing::WithParamInterface<LandingMode> {};

/// From the first registration to the last close: what is made lazily is made under a capture, too.
TEST_P(CaptureDevice, AnUpdateDisturbsNoCaptureOfAnotherThread) {
  const Memory source = Allocate(kCapturedSize);
  const Memory target = Allocate(kCapturedSize);
  {
    const Capturer here(devices, source.device);
    Capturer there(devices, target.device);
    there.hold = true;
    while (!there.capturing()) std::this_thread::yield();
    const auto trainer = ConnectTrainer();
    ASSERT_TRUE(
        trainer->Register({.shards = {Whole("a", DType::kU8, {int64_t{kCapturedSize}}, source)}}, {}).ok());
    const auto inference = ConnectInference();
    ASSERT_TRUE(inference
                    ->Register({.shards = {Whole("a", DType::kU8, {int64_t{kCapturedSize}}, target)}},
                               {.landing = GetParam()})
                    .ok());
    for (int64_t number = 1; number <= 3; ++number) {
      const std::vector<std::byte> sent(kCapturedSize, static_cast<std::byte>(number));
      devices.Write(source, 0, sent);
      Move(*trainer, *inference, number);
      std::vector<std::byte> landed(kCapturedSize);
      devices.Read(target, 0, landed);
      ASSERT_EQ(landed, sent);
    }
    inference->Close();
    trainer->Close();
    there.hold = false;
    const int good = here.good();
    const TimePoint limit = In(60);
    while ((there.good() == 0 && there.spoilt() == 0) || here.good() == good)
      transport::Require(Clock::now() < limit, "no capture ends");
    EXPECT_EQ(here.spoilt() + there.spoilt(), 0);
  }
  FreeAll();
}

INSTANTIATE_TEST_SUITE_P(Landings, CaptureDevice,
                         testing::Values(LandingMode::kInPlace, LandingMode::kShadow),
                         [](const auto& landing) {
                           return std::string(landing.param == LandingMode::kShadow ? "shadow" : "in_place");
                         });

}  // namespace
}  // namespace weightcast
