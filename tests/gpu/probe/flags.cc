// E7: whether a flag of cuStreamWriteValue64 is ever seen before the bytes of the copy in front of it.
#include <cstring>
#include <optional>

#include "gpu/probe/driver.h"
#include "gpu/probe/experiments.h"
#include "gpu/probe/report.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

constexpr uint64_t kBytes = 4096;  ///< Of a copy.
constexpr uint64_t kSlots = 256;   ///< Places that copies go to in turn.
constexpr uint64_t kArena = kSlots * kBytes;
constexpr uint64_t kAhead = 8;  ///< Pairs of copy and flag that are begun at once.
constexpr uint64_t kSeeds[2] = {0xA000000, 0xB000000};

struct Found {
  uint64_t flags = 0;
  uint64_t early = 0;  ///< Words that were not there yet.
};

uint64_t LoadBytes() { return Scaled(16, 1) * kMiB; }

/// Copies from a source that holds two patterns. Each turn round the slots brings the other pattern, so a
/// byte that has not come is a byte that differs.
class Flags {
 public:
  /// `by` makes the copies out of memory of `owner`.
  Flags(const Device& by, Device& owner) : by_(by) {
    {
      const Current current(owner);
      for (CUdeviceptr& source : sources_) source = Device::Allocate(kArena);
      owner.Fill(sources_[0], kArena, kSeeds[0]);
      owner.Fill(sources_[1], kArena, kSeeds[1]);
      load_source_ = Device::Allocate(LoadBytes());
    }
    const Current current(by_);
    stream_ = Device::NewStream();
    load_stream_ = Device::NewStream();
    load_over_ = Device::NewEvent();
    words_.emplace(1);
  }

  /// To device memory: as soon as a flag is seen, a kernel of `reader` compares.
  Found OnDevice(Device& reader, double seconds) {
    const Current current(reader);
    const CUdeviceptr target = Device::Allocate(kArena);
    reader.Fill(target, kArena, kSeeds[1]);
    const CUdeviceptr early = Device::Allocate(sizeof(uint64_t));
    auto* const result = static_cast<uint64_t*>(PinnedMemory(sizeof(uint64_t)));
    Check(Driver().MemsetD8Async(early, 0, sizeof(uint64_t), reader.stream()), "cuMemsetD8Async");
    reader.Wait(reader.stream());
    const CUevent events[2] = {Device::NewEvent(), Device::NewEvent()};
    for (const CUevent event : events) Check(Driver().EventRecord(event, reader.stream()), "cuEventRecord");
    const auto check = [&](uint64_t i) {
      const uint64_t at = i % kSlots * kBytes;
      reader.Compare(target + at, kBytes, SeedOf(i) + at, early, reader.stream());
    };
    // Before a slot is written again its comparison is over.
    const auto before = [&](uint64_t i) {
      if (i % (kSlots / 2) != 0) return;
      const CUevent event = events[i / (kSlots / 2) % 2];
      Check(Driver().EventSynchronize(events[1 - i / (kSlots / 2) % 2]), "cuEventSynchronize");
      Check(Driver().EventRecord(event, reader.stream()), "cuEventRecord");
    };
    Found found{.flags = RunBoth(target, Device::Allocate(LoadBytes()), seconds, before, check)};
    Check(Driver().MemcpyAsync(Address(result), early, sizeof(uint64_t), reader.stream()), "cuMemcpyAsync");
    reader.Wait(reader.stream());
    found.early = *result;
    return found;
  }

  /// To pinned host memory: the processor compares.
  Found OnHost(double seconds) {
    const Current current(by_);
    auto* const target = static_cast<std::byte*>(PinnedMemory(kArena));
    Found found;
    const auto check = [&](uint64_t i) {
      const uint64_t at = i % kSlots * kBytes;
      for (uint64_t offset = 0; offset < kBytes; offset += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, target + at + offset, sizeof word);
        found.early += word != SeedOf(i) + at + offset;
      }
    };
    const CUdeviceptr load = Address(PinnedMemory(LoadBytes()));
    found.flags = RunBoth(Address(target), load, seconds, [](uint64_t) {}, check);
    return found;
  }

 private:
  static uint64_t SeedOf(uint64_t i) { return kSeeds[i / kSlots % 2]; }

  /// Copies, each with a flag behind it: with the way to themselves, then beside large copies. before(i): may
  /// copy i begin; check(i): its flag was seen. How many there were.
  template <typename Before, typename CheckOne>
  uint64_t RunBoth(CUdeviceptr target, CUdeviceptr load, double seconds, Before before, CheckOne check) {
    Run(target, 0, seconds / 2, before, check);
    Run(target, load, seconds / 2, before, check);
    return next_;
  }

  template <typename Before, typename CheckOne>
  void Run(CUdeviceptr target, CUdeviceptr load, double seconds, Before before, CheckOne check) {
    const uint64_t last = next_ + Scaled(250'000, 512) / kSlots * kSlots;
    const auto begin = Clock::now();
    // Whole turns, so that the next ones bring the other pattern again.
    for (; next_ % kSlots != 0 || (next_ < last && SecondsSince(begin) < seconds); next_ += kAhead) {
      before(next_);
      {
        const Current current(by_);
        if (load != 0) Load(load);
        for (uint64_t i = next_; i < next_ + kAhead; ++i) {
          const uint64_t at = i % kSlots * kBytes;
          Check(Driver().MemcpyAsync(target + at, sources_[i / kSlots % 2] + at, kBytes, stream_),
                "cuMemcpyAsync");
          WriteWord(stream_, words_->at(0), i + 1);
        }
      }
      for (uint64_t i = next_; i < next_ + kAhead; ++i) {
        if (!words_->Await(0, i + 1)) Fail("a flag has not come after 5 s");
        check(i);
      }
    }
    const Current current(by_);
    by_.Wait(load_stream_);
  }

  /// Ensures that a large copy is under way.
  void Load(CUdeviceptr target) {
    if (Driver().EventQuery(load_over_) != CUDA_SUCCESS) return;
    for (int i = 0; i < 4; ++i)
      Check(Driver().MemcpyAsync(target, load_source_, LoadBytes(), load_stream_), "cuMemcpyAsync");
    Check(Driver().EventRecord(load_over_, load_stream_), "cuEventRecord");
  }

  const Device& by_;
  CUdeviceptr sources_[2]{};
  CUstream stream_{};
  CUstream load_stream_{};
  CUevent load_over_{};
  CUdeviceptr load_source_ = 0;
  std::optional<Words64> words_;
  uint64_t next_ = 0;  ///< Number of the next copy.
};

}  // namespace

void FlagsBehindData() {
  constexpr double kSeconds = 2;  // For each way.
  Device here(0);
  std::optional<Device> second;
  if (Devices() > 1) second.emplace(1);
  Device& there = second ? *second : here;
  EnablePeers(here, there);
  const Found pulled = Flags(here, there).OnDevice(here, kSeconds);
  const Found host = Flags(here, there).OnHost(kSeconds);
  Found pushed;
  if (second) pushed = Flags(there, there).OnDevice(here, kSeconds);
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  const uint64_t early = pulled.early + pushed.early + host.early;
  const uint64_t flags = pulled.flags + pushed.flags + host.flags;
  Print({.experiment = "E7: flags of cuStreamWriteValue64 that were seen before the bytes in front of them",
         .predicted = "0",
         .measured = std::to_string(early),
         .unit = "words of 8 bytes",
         .verdict = VerdictIf(early == 0),
         .note = Way() + "; " + std::to_string(flags) + " flags: " + std::to_string(pulled.flags) +
                 " behind pulls and " + std::to_string(pushed.flags) +
                 " behind pushes, compared by kernels that were launched when the flag was seen; " +
                 std::to_string(host.flags) + " behind copies to pinned memory, compared by the processor",
         .figures = {{"pulled_flags", number(pulled.flags)},
                     {"pulled_early", number(pulled.early)},
                     {"pushed_flags", number(pushed.flags)},
                     {"pushed_early", number(pushed.early)},
                     {"host_flags", number(host.flags)},
                     {"host_early", number(host.early)}}});
}

}  // namespace probe
