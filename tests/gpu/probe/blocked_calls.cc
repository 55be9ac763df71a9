// E12: how long submits take while another thread's call waits in the driver behind kernels that run.
#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "gpu/probe/driver.h"
#include "gpu/probe/experiments.h"
#include "gpu/probe/report.h"
#include "kernels/fill.h"
#include "kernels/ptx.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

/// A thread that copies 64 KiB again and again, as wc-device does for somebody else.
class Submitter {
 public:
  explicit Submitter(const Device& device)
      : device_(device),
        stream_(Device::NewStream()),
        to_(Device::Allocate(kBytes)),
        from_(Device::Allocate(kBytes)),
        thread_([this] { Run(); }) {}
  Submitter(const Submitter&) = delete;
  Submitter& operator=(const Submitter&) = delete;
  ~Submitter() {
    over_ = true;
    thread_.join();
  }

  /// The longest since the last call, with what is under way now, in milliseconds.
  double TakeLongestSubmit() { return Take(submit_ns_); }
  double TakeLongestCopy() { return Take(copy_ns_); }
  /// Until a copy that begins from now on is over.
  void AwaitCopy() const {
    const uint64_t seen = copies_.load();
    while (copies_.load() < seen + 2) Sleep(0.0001);
  }

 private:
  static constexpr uint64_t kBytes = 64 << 10;

  static double Take(std::atomic<int64_t>& longest) { return static_cast<double>(longest.exchange(0)) / 1e6; }
  static void Note(std::atomic<int64_t>& longest, Clock::time_point begin) {
    const int64_t took = std::chrono::nanoseconds(Clock::now() - begin).count();
    if (took > longest.load()) longest.store(took);
  }

  void Run() {
    const Current current(device_);
    for (uint64_t i = 1; !over_; ++i) {
      const auto begin = Clock::now();
      Check(Driver().MemcpyAsync(to_, from_, kBytes, stream_), "cuMemcpyAsync");
      WriteWord(stream_, words_.at(0), i);
      Note(submit_ns_, begin);
      if (!words_.Await(0, i, 20)) Fail("a small copy is not over after 20 s");
      Note(copy_ns_, begin);
      ++copies_;
      Sleep(0.0001);
    }
  }

  const Device& device_;
  const CUstream stream_;
  const CUdeviceptr to_;
  const CUdeviceptr from_;
  const Words64 words_{1};
  std::atomic<int64_t> submit_ns_{0};
  std::atomic<int64_t> copy_ns_{0};
  std::atomic<uint64_t> copies_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;  ///< Last: it uses the others.
};

/// Kernels of one warp: they occupy nothing, and take their time.
class SlowKernels {
 public:
  explicit SlowKernels(Device& device) : device_(device), stream_(Device::NewStream()) {
    memory_ = Device::Allocate(kMost());
    words_ = Device::Allocate(sizeof(uint64_t));
    device_.Fill(memory_, kMost(), 0);
    Launch(kTried);  // The first launch has the module loaded.
    device_.Wait(stream_);
    const auto begin = Clock::now();
    Launch(kTried);
    device_.Wait(stream_);
    seconds_of_tried_ = SecondsSince(begin);
  }

  /// Leaves about so many seconds of kernels in a stream.
  void Begin(double seconds) {
    const double all = seconds / seconds_of_tried_ * static_cast<double>(kTried);
    auto left = static_cast<uint64_t>(std::min(all, 64.0 * static_cast<double>(kMost())));
    for (; left > 0; left -= std::min(left, kMost())) Launch(std::min(left, kMost()) / 16 * 16);
  }
  void Wait() { device_.Wait(stream_); }

 private:
  static constexpr uint64_t kTried = 4 * kMiB;
  static uint64_t kMost() { return Scaled(2048, 16) * kMiB; }

  void Launch(uint64_t bytes) {
    if (bytes == 0) return;
    weightcast::kernels::CompareParameters parameters{memory_, bytes, 0, words_};
    device_.Launch("compare", 1, 32, &parameters, stream_);
  }

  Device& device_;
  const CUstream stream_;
  CUdeviceptr memory_ = 0;
  CUdeviceptr words_ = 0;
  double seconds_of_tried_ = 0;
};

struct Trial {
  const char* name;
  std::function<void()> call;
};

}  // namespace

void BlockedCalls() {
  const double kernel_seconds = OnFake() ? 0.01 : 0.8;
  const uint64_t bytes = Scaled(256, 4) * kMiB;
  Device device(0);
  const Current current(device);
  SlowKernels kernels(device);
  const CUdeviceptr to_free = Device::Allocate(bytes);
  void* const to_unpin = PinnedMemory(bytes / 4);
  CUmodule module{};
  const std::vector<Trial> trials = {
      {"nothing", [] {}},
      {"allocate", [&] { (void)Device::Allocate(bytes); }},
      {"free", [&] { Check(Driver().MemFree(to_free), "cuMemFree"); }},
      {"load_module",
       [&] {
         const char* const text = weightcast::kernels::PtxForSm80().data();
         Check(Driver().ModuleLoadDataEx(&module, text, 0, nullptr, nullptr), "cuModuleLoadDataEx");
         CUfunction function{};
         Check(Driver().ModuleGetFunction(&function, module, "fill"), "cuModuleGetFunction");
       }},
      {"pin", [&] { (void)PinnedMemory(bytes / 4); }},
      {"unpin", [&] { Check(Driver().MemFreeHost(to_unpin), "cuMemFreeHost"); }},
  };
  Submitter submitter(device);
  Report report{.experiment = "E12: the longest submit while another call waits behind kernels",
                .predicted = "up to seconds",
                .unit = "ms"};
  double longest = 0;
  std::string note = "device 0, kernels of ";
  for (const Trial& trial : trials) {
    submitter.AwaitCopy();
    const auto begin = Clock::now();
    kernels.Begin(kernel_seconds);
    Sleep(0.02);
    (void)submitter.TakeLongestSubmit();
    (void)submitter.TakeLongestCopy();
    const auto call_begin = Clock::now();
    trial.call();
    const double call_ms = 1e3 * SecondsSince(call_begin);
    kernels.Wait();
    const double kernel_ms = 1e3 * SecondsSince(begin);
    submitter.AwaitCopy();
    const double submit_ms = submitter.TakeLongestSubmit();
    const double copy_ms = submitter.TakeLongestCopy();
    longest = std::max(longest, submit_ms);
    const std::string name = trial.name;
    if (&trial == &trials.front()) note += Text(kernel_ms) + " ms; call, submit, copy in ms";
    note += "; " + name + " " + Text(call_ms) + ", " + Text(submit_ms) + ", " + Text(copy_ms);
    report.figures.emplace_back(name + "_kernels_ms", kernel_ms);
    report.figures.emplace_back(name + "_call_ms", call_ms);
    report.figures.emplace_back(name + "_submit_ms", submit_ms);
    report.figures.emplace_back(name + "_copy_ms", copy_ms);
  }
  report.measured = Text(longest);
  report.verdict = VerdictIf(longest >= 300 * kernel_seconds);
  report.note = note;
  Print(report);
}

}  // namespace probe
