// E6: how long 64 KiB take to or from another process's memory, by a thread that spins or sleeps meanwhile.
#include <atomic>
#include <thread>

#include "gpu/probe/experiments.h"
#include "gpu/probe/exporter.h"
#include "gpu/probe/report.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

constexpr uint64_t kWrittenSeed = 0xE6;
constexpr uint64_t kEnd = ~uint64_t{0};

/// A thread that owns the device, as wc-device does: it takes the number of an order, copies and writes it
/// into a pinned word.
class Owner {
 public:
  Owner(const Device& device, bool sleeps, CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
      : device_(device), sleeps_(sleeps), to_(to), from_(from), bytes_(bytes), thread_([this] { Run(); }) {}
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    Post(kEnd);
    thread_.join();
  }

  void Post(uint64_t number) {
    order_.store(number, std::memory_order_release);
    if (sleeps_) order_.notify_one();
  }
  /// Microseconds from each post to the word, `gap` seconds apart.
  std::vector<double> Measure(uint64_t rounds, double gap) {
    std::vector<double> found;
    for (uint64_t i = 1; i <= rounds; ++i) {
      if (gap > 0) Sleep(gap);
      const auto begin = Clock::now();
      Post(i);
      if (!words_.Await(0, i)) Fail("a copy is not over after 5 s");
      found.push_back(1e6 * SecondsSince(begin));
    }
    return found;
  }

 private:
  void Run() {
    const Current current(device_);
    for (uint64_t done = 0;;) {
      if (sleeps_) order_.wait(done, std::memory_order_acquire);
      const uint64_t order = order_.load(std::memory_order_acquire);
      if (order == kEnd) return;
      if (order == done) {
        if (OnFake()) std::this_thread::yield();
        continue;
      }
      Check(Driver().MemcpyAsync(to_, from_, bytes_, device_.stream()), "cuMemcpyAsync");
      WriteWord(device_.stream(), words_.at(0), order);
      done = order;
    }
  }

  const Device& device_;
  const bool sleeps_;
  const CUdeviceptr to_;
  const CUdeviceptr from_;
  const uint64_t bytes_;
  const Words64 words_{1};
  std::atomic<uint64_t> order_{0};
  std::thread thread_;  ///< Last: it uses the others.
};

}  // namespace

void SmallWrites() {
  constexpr uint64_t kLength = 64 << 10;
  constexpr double kApart = 0.002;
  Exporter exporter(PeerDevice());
  Device device(0);
  const Current current(device);
  const CUdeviceptr theirs = OpenLegacy(exporter.Allocate(2 * kMiB, kWrittenSeed));
  const CUdeviceptr ours = Device::Allocate(2 * kMiB);
  const uint64_t rounds = Scaled(5000, 50);
  const uint64_t apart = Scaled(300, 10);
  const auto read = Owner(device, false, ours, theirs, kLength).Measure(rounds, 0);
  if (device.Differences(ours, kLength, kWrittenSeed) != 0) Fail("a read brought other bytes");
  device.Fill(ours, 2 * kMiB, kWrittenSeed + 1);
  const auto write = Owner(device, false, theirs, ours, kLength).Measure(rounds, 0);
  // std::atomic's wait spins for a moment before it sleeps: the gap is far longer.
  const auto asleep = Owner(device, true, theirs, ours, kLength).Measure(apart, kApart);
  // Nothing sleeps, but the device has idled: what of the above is the wake-up.
  const auto idle = Owner(device, false, theirs, ours, kLength).Measure(apart, kApart);
  // The rest of the peer's memory still holds the first pattern.
  const uint64_t rest = (2 * kMiB - kLength) / 8;
  if (exporter.Differences(kWrittenSeed + 1) != rest) Fail("a write brought other bytes");
  Print({.experiment = "E6: 64 KiB to another process's memory: spinning; asleep",
         .predicted = "7; 40",
         .measured = Text({Median(write), Median(asleep)}),
         .unit = "us",
         .verdict = VerdictIf(Median(write) <= 10 && Median(asleep) <= 60),
         .note = (PeerDevice() == 0 ? "within device 0" : "device 0 to device 1") + std::string("; p99 ") +
                 Text({Quantile(write, 0.99), Quantile(asleep, 0.99)}) + "; a read " + Text(Median(read)) +
                 "; spinning, 2 ms apart " + Text(Median(idle)),
         .figures = {{"write_us", Median(write)},
                     {"write_p99_us", Quantile(write, 0.99)},
                     {"read_us", Median(read)},
                     {"asleep_us", Median(asleep)},
                     {"asleep_p99_us", Quantile(asleep, 0.99)},
                     {"spinning_after_idle_us", Median(idle)}}});
}

}  // namespace probe
