// E2 and E4: how fast a device copies from several others, and many tensors at once.
#include <algorithm>
#include <memory>

#include "gpu/probe/experiments.h"
#include "gpu/probe/exporter.h"
#include "gpu/probe/report.h"
#include "kernels/copy_list.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

constexpr uint64_t kCopiedSeed = 0xC0B1;

// --- E2

/// One copy among several at a time; each in a stream of its own of the device that makes it.
struct Flow {
  const Device* by;
  CUdeviceptr to;
  CUdeviceptr from;
  uint64_t bytes;
};

/// GB/s of all of them together; the median of some rounds, after one to warm up.
double Together(const std::vector<Flow>& flows) {
  std::vector<CUstream> streams;
  uint64_t bytes = 0;
  for (const Flow& flow : flows) {
    const Current current(*flow.by);
    streams.push_back(Device::NewStream());
    bytes += flow.bytes;
  }
  std::vector<double> seconds;
  for (int round = 0; round < 6; ++round) {
    const auto begin = Clock::now();
    for (size_t i = 0; i < flows.size(); ++i) {
      const Current current(*flows[i].by);
      Check(Driver().MemcpyAsync(flows[i].to, flows[i].from, flows[i].bytes, streams[i]), "cuMemcpyAsync");
    }
    for (size_t i = 0; i < flows.size(); ++i) {
      const Current current(*flows[i].by);
      flows[i].by->Wait(streams[i]);
    }
    if (round > 0) seconds.push_back(SecondsSince(begin));
  }
  return static_cast<double>(bytes) / Median(seconds) / 1e9;
}

/// The same of one reader in one stream: pieces of the sources in turn.
double InOneStream(const std::vector<Flow>& flows) {
  const uint64_t piece = std::min<uint64_t>(16 * kMiB, flows.front().bytes);
  const Current current(*flows.front().by);
  std::vector<double> seconds;
  for (int round = 0; round < 6; ++round) {
    const auto begin = Clock::now();
    for (uint64_t at = 0; at < flows.front().bytes; at += piece) {
      for (const Flow& flow : flows)
        Check(Driver().MemcpyAsync(flow.to + at, flow.from + at, piece, flow.by->stream()), "cuMemcpyAsync");
    }
    flows.front().by->Wait(flows.front().by->stream());
    if (round > 0) seconds.push_back(SecondsSince(begin));
  }
  return static_cast<double>(flows.size() * flows.front().bytes) / Median(seconds) / 1e9;
}

class SeveralDevices {
 public:
  explicit SeveralDevices(int count) {
    for (int i = 0; i < count; ++i) {
      devices_.push_back(std::make_unique<Device>(i));
      const Current current(*devices_.back());
      memory_.push_back(Device::Allocate(count * kBytes()));
    }
    for (int i = 0; i < count; ++i)
      for (int other = 0; other < i; ++other) EnablePeers(*devices_[i], *devices_[other]);
    for (int i = 0; i < count; ++i) {
      const Current current(*devices_[i]);
      devices_[i]->Fill(memory_[i], kBytes(), kCopiedSeed + static_cast<uint64_t>(i));
    }
  }

  static uint64_t kBytes() { return Scaled(512, 2) * kMiB; }
  /// Device `by` copies what device `from` has to part `part` of what device `to` has.
  [[nodiscard]] Flow Copy(int by, int to, int part, int from) const {
    return {devices_[by].get(), memory_[to] + static_cast<uint64_t>(part) * kBytes(), memory_[from],
            kBytes()};
  }
  void Expect(int device, int part, int from) const {
    const Current current(*devices_[device]);
    const CUdeviceptr at = memory_[device] + static_cast<uint64_t>(part) * kBytes();
    if (devices_[device]->Differences(at, kBytes(), kCopiedSeed + static_cast<uint64_t>(from)) != 0)
      Fail("a copy between devices brought other bytes");
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<CUdeviceptr> memory_;  ///< Of each: its own bytes, then room for others'.
};

// --- E4

/// Bytes of the tensors of Qwen2.5-0.5B in BF16; on the fake only their form.
std::vector<uint64_t> TensorSizes() {
  constexpr uint64_t kWidth = 896;
  constexpr uint64_t kKeys = 128;
  constexpr uint64_t kInner = 4864;
  std::vector<uint64_t> elements = {Scaled(151936, 2000) * kWidth};
  for (uint64_t layer = 0; layer < Scaled(24, 1); ++layer) {
    elements.insert(elements.end(),
                    {kWidth, kWidth * kWidth, kWidth, kKeys * kWidth, kKeys, kKeys * kWidth, kKeys,
                     kWidth * kWidth, kWidth, kInner * kWidth, kInner * kWidth, kWidth * kInner});
  }
  elements.push_back(kWidth);
  for (uint64_t& one : elements) one *= 2;
  return elements;
}

/// The copies of all tensors, and the ways to make them.
class Tensors {
 public:
  Tensors(Device& device, CUdeviceptr source) : device_(device), second_(Device::NewStream()) {
    for (const uint64_t size : TensorSizes()) {
      offsets_.push_back(bytes_);
      lengths_.push_back(size);
      bytes_ += (size + 255) / 256 * 256;
    }
    target_ = Device::Allocate(bytes_);
    pieces_ = static_cast<weightcast::kernels::CopyPiece*>(
        PinnedMemory(lengths_.size() * sizeof(weightcast::kernels::CopyPiece)));
    for (size_t i = 0; i < lengths_.size(); ++i) {
      pieces_[i] = {source + offsets_[i], target_ + offsets_[i], static_cast<uint32_t>(lengths_[i])};
      Add(all_, i);
      if (lengths_[i] >= kLarge) {
        Add(large_, i);
      } else if (small_.count < weightcast::kernels::kListPieces) {
        small_.piece[small_.count++] = pieces_[i];
      } else {
        Fail("too many small tensors for one list");
      }
    }
  }

  static uint64_t Bytes() {
    uint64_t bytes = 0;
    for (const uint64_t size : TensorSizes()) bytes += (size + 255) / 256 * 256;
    return bytes;
  }
  [[nodiscard]] size_t count() const { return lengths_.size(); }
  [[nodiscard]] bool has_batches() const { return has_batches_; }

  void ByBatch() { Submit(all_); }
  void ByBatchAndList() {
    device_.Launch("copy_list", 16, 512, &small_, second_);
    Submit(large_);
  }
  void ByKernel() {
    weightcast::kernels::CopyPiecesParameters parameters{Address(pieces_), static_cast<uint32_t>(count()), 0};
    device_.Launch("copy_pieces", 32, 512, &parameters, device_.stream());
  }

  /// Milliseconds, the median of some rounds; the bytes are compared.
  double Measure(void (Tensors::*begin)()) {
    Check(Driver().MemsetD8Async(target_, 0xAA, bytes_, device_.stream()), "cuMemsetD8Async");
    device_.Wait(device_.stream());
    std::vector<double> milliseconds;
    for (uint64_t round = 0; round < Scaled(10, 3); ++round) {
      const auto start = Clock::now();
      (this->*begin)();
      device_.Wait(device_.stream());
      device_.Wait(second_);
      if (round > 0) milliseconds.push_back(1e3 * SecondsSince(start));
    }
    for (size_t i = 0; i < count(); ++i)
      if (device_.Differences(target_ + offsets_[i], lengths_[i], kCopiedSeed + offsets_[i]) != 0)
        Fail("a tensor has other bytes than its source");
    return Median(milliseconds);
  }

 private:
  static constexpr uint64_t kLarge = 32 << 10;
  struct Batch {
    std::vector<CUdeviceptr> to;
    std::vector<CUdeviceptr> from;
    std::vector<size_t> lengths;
  };

  void Add(Batch& batch, size_t i) {
    batch.to.push_back(pieces_[i].target);
    batch.from.push_back(pieces_[i].source);
    batch.lengths.push_back(lengths_[i]);
  }

  void Submit(const Batch& batch) {
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    size_t first = 0;
    if (has_batches_) {
      const CUresult result =
          Driver().MemcpyBatchAsync(batch.to.data(), batch.from.data(), batch.lengths.data(),
                                    batch.lengths.size(), &attributes, &first, 1, device_.stream());
      has_batches_ = result != CUDA_ERROR_NOT_SUPPORTED;
      if (has_batches_) return Check(result, "cuMemcpyBatchAsync");
    }
    for (size_t i = 0; i < batch.lengths.size(); ++i)
      Check(Driver().MemcpyAsync(batch.to[i], batch.from[i], batch.lengths[i], device_.stream()),
            "cuMemcpyAsync");
  }

  Device& device_;
  const CUstream second_;
  std::vector<uint64_t> offsets_;
  std::vector<uint64_t> lengths_;
  uint64_t bytes_ = 0;
  CUdeviceptr target_ = 0;
  weightcast::kernels::CopyPiece* pieces_ = nullptr;  ///< Pinned.
  Batch all_;
  Batch large_;
  weightcast::kernels::CopyList small_{};
  bool has_batches_ = true;
};

}  // namespace

void SeveralSources() {
  Report report{.experiment = "E2: one device reads from one, two, three; the same in one stream",
                .predicted = "330-395",
                .unit = "GB/s"};
  if (Devices() < 3) {
    report.note = "it wants three devices, and there are " + std::to_string(Devices());
    return Print(report);
  }
  const int count = std::min(4, Devices());
  const SeveralDevices devices(count);
  std::vector<Flow> flows;
  std::vector<double> reads;
  for (int from = 1; from < count; ++from) {
    flows.push_back(devices.Copy(0, 0, from, from));
    reads.push_back(Together(flows));
    report.figures.emplace_back("read_from_" + std::to_string(from), reads.back());
  }
  const double one_stream = InOneStream(flows);
  report.figures.emplace_back("read_from_" + std::to_string(count - 1) + "_in_one_stream", one_stream);
  for (int from = 1; from < count; ++from) devices.Expect(0, from, from);
  report.verdict = VerdictIf(reads.back() >= 330);
  report.measured = Text(reads) + "; " + Text(one_stream);
  if (count == 4) {
    // Devices 2 and 3 each get what 0 and 1 have, by their own engines or by the sources'.
    const double pull = Together({devices.Copy(2, 2, 1, 0), devices.Copy(2, 2, 2, 1),
                                  devices.Copy(3, 3, 1, 0), devices.Copy(3, 3, 2, 1)});
    const double push = Together({devices.Copy(0, 2, 1, 0), devices.Copy(1, 2, 2, 1),
                                  devices.Copy(0, 3, 1, 0), devices.Copy(1, 3, 2, 1)});
    for (const int to : {2, 3})
      for (const int from : {0, 1}) devices.Expect(to, from + 1, from);
    report.figures.emplace_back("two_to_two_pulled", pull);
    report.figures.emplace_back("two_to_two_pushed", push);
    report.note = "two to two: pulled " + Text(pull) + ", pushed " + Text(push) + " GB/s together";
  }
  Print(report);
}

void ManyTensors() {
  Exporter exporter(PeerDevice());
  Device device(0);
  const Current current(device);
  const CUdeviceptr source = OpenLegacy(exporter.Allocate(Tensors::Bytes(), kCopiedSeed));
  Tensors tensors(device, source);
  const double batch = tensors.Measure(&Tensors::ByBatch);
  const double list = tensors.Measure(&Tensors::ByBatchAndList);
  const double kernel = tensors.Measure(&Tensors::ByKernel);
  const bool between = PeerDevice() != 0;
  Print(
      {.experiment = "E4: " + std::to_string(tensors.count()) +
                     " tensors of 0.5B in one batch; those below 32 KiB by a list kernel; all by a kernel",
       .predicted = between ? "2.65; 2.55" : "",
       .measured = Text({batch, list, kernel}),
       .unit = "ms",
       .verdict = between ? VerdictIf(batch <= 1.1 * 2.65 && list <= 1.1 * 2.55) : Verdict::kNothingPredicted,
       .note = Way() + "; " + Text(static_cast<double>(Tensors::Bytes()) / 1e9) + " GB" +
               (tensors.has_batches() ? "" : "; the driver has no batches: single copies"),
       .figures = {{"batch_ms", batch}, {"batch_and_list_ms", list}, {"kernel_ms", kernel}}});
}

}  // namespace probe
