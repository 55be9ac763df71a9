#include "device/copy_streams.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/copy_list.h"

namespace weightcast::device {
namespace {

using drivers::CUdeviceptr;

constexpr int kMostStreams = 8;
/// Between devices a batch takes 2 us for each copy, and a launch as much for any number
/// (docs/performance.md, "Measured: copies that a device makes of mapped memory").
constexpr uint64_t kLaunchedBetween = uint64_t{256} << 10;
constexpr size_t kFewest = 4;

/// The copies of a batch, as far as the choice goes.
struct Shape {
  bool host = false;
  bool between = false;
  uint64_t bytes = 0;
  uint64_t longest = 0;
  size_t count = 0;

  void Add(std::span<const Copy> copies) {
    for (const Copy& copy : copies) {
      host |= copy.ends == Ends::kHost;
      between |= copy.ends == Ends::kDevices;
      longest = std::max<uint64_t>(longest, copy.length);
      bytes += copy.length;
    }
    count += copies.size();
  }
  [[nodiscard]] bool SuitsKernel(uint64_t launched_within) const {
    if (host || longest > UINT32_MAX) return false;
    if (between) return count >= kFewest && bytes / count <= kLaunchedBetween;
    return bytes / count <= launched_within;
  }
};

CUdeviceptr Address(const std::byte* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

CopyStreams::CopyStreams(std::shared_ptr<Health> health, std::shared_ptr<KernelLoader> loader,
                         const CopyQueueOptions& options)
    : health_(std::move(health)),
      loader_(std::move(loader)),
      options_(options),
      writes_words_(options.use_write_value),
      batches_(options.use_batch_call),
      launches_(options.use_kernels),
      to_(CopyLimits::kCopies),
      from_(CopyLimits::kCopies),
      lengths_(CopyLimits::kCopies) {}

Status CopyStreams::Open() {
  Status status = OpenStreams();
  if (status.ok()) status = OpenWords();
  if (!status.ok()) Close();
  return status;
}

Status CopyStreams::OpenStreams() {
  int least = 0;
  int greatest = 0;
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, CtxGetStreamPriorityRange, &least, &greatest));
  const int count = std::clamp(options_.streams, 1, kMostStreams);
  for (int i = 0; i < count; ++i) {
    drivers::CUstream stream{};
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, StreamCreateWithPriority, &stream,
                                       drivers::CU_STREAM_NON_BLOCKING, greatest));
    streams_.push_back(stream);
    drivers::CUevent cover{};
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, EventCreate, &cover, drivers::CU_EVENT_DISABLE_TIMING));
    covers_.push_back(cover);
  }
  for (drivers::CUevent& event : events_) {
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, EventCreate, &event, drivers::CU_EVENT_DISABLE_TIMING));
  }
  return Status::Ok();
}

Status CopyStreams::OpenWords() {
  constexpr unsigned int kFlags = drivers::CU_MEMHOSTALLOC_PORTABLE | drivers::CU_MEMHOSTALLOC_DEVICEMAP;
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, MemHostAlloc, &pinned_, CompletionWords::kBytes, kFlags));
  std::memset(pinned_, 0, CompletionWords::kBytes);
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, MemHostGetDevicePointer, &device_words_, pinned_, 0));
  words_ = std::make_unique<CompletionWords>(pinned_);
  return Status::Ok();
}

/// What a lost context refuses to take back is gone with it.
void CopyStreams::Close() {
  drivers::Cuda& cuda = health_->context().cuda();
  for (const drivers::CUstream stream : streams_) cuda.StreamDestroy(stream);
  for (const drivers::CUevent cover : covers_) cuda.EventDestroy(cover);
  for (drivers::CUevent& event : events_) {
    const drivers::CUevent gone = std::exchange(event, {});
    if (gone != drivers::CUevent{}) cuda.EventDestroy(gone);
  }
  if (pinned_ != nullptr) cuda.MemFreeHost(std::exchange(pinned_, nullptr));
  streams_.clear();
  covers_.clear();
  words_.reset();
}

void CopyStreams::Gather(std::span<const Copy> copies, size_t at) {
  for (const Copy& copy : copies) {
    to_[at] = Address(copy.to);
    from_[at] = Address(copy.from);
    lengths_[at] = copy.length;
    ++at;
  }
}

Status CopyStreams::Begin(uint64_t ticket, std::span<const Copy> first, std::span<const Copy> second) {
  const drivers::CUstream stream = StreamOf(ticket);
  const size_t count = first.size() + second.size();
  Gather(first, 0);
  Gather(second, first.size());
  words_->Begin(ticket);
  if (Launches(first, second)) {
    WC_RETURN_IF_ERROR(CopyByKernel(stream, count));
  } else {
    WC_RETURN_IF_ERROR(batches_ && count > 1 ? CopyBatch(stream, count) : CopyEach(stream, count));
  }
  WC_RETURN_IF_ERROR(WriteWord(ticket, stream));
  return WC_CHECK_DRIVER(*health_, EventRecord, EventOf(ticket), stream);
}

/// Whether a kernel makes the copies: loaded by whoever registered the memory, as loading waits for kernels
/// that run. Until then the driver's calls serve as well; where there are none, for good.
bool CopyStreams::Launches(std::span<const Copy> first, std::span<const Copy> second) {
  if (!launches_) return false;
  Shape shape;
  shape.Add(first);
  shape.Add(second);
  if (!shape.SuitsKernel(options_.launched_within)) return false;
  if (kernels_ == nullptr) launches_ = FindKernel().ok();
  return launches_ && kernels_ != nullptr;
}

Status CopyStreams::FindKernel() {
  WC_ASSIGN_OR_RETURN(auto loaded, loader_->Loaded());
  if (loaded == nullptr) return Status::Ok();
  WC_ASSIGN_OR_RETURN(copy_list_, loaded->FunctionOf("copy_list"));
  kernels_ = std::move(loaded);
  return Status::Ok();
}

Status CopyStreams::CopyByKernel(drivers::CUstream stream, size_t count) {
  constexpr unsigned int kThreads = 512;
  kernels::CopyList list{};
  for (size_t at = 0; at < count; at += list.count) {
    list.count = static_cast<uint32_t>(std::min<size_t>(count - at, kernels::kListPieces));
    for (uint32_t i = 0; i < list.count; ++i)
      list.piece[i] = {from_[at + i], to_[at + i], static_cast<uint32_t>(lengths_[at + i])};
    void* parameters = &list;
    WC_RETURN_IF_ERROR(
        health_->Check(health_->context().cuda().LaunchKernel(copy_list_, options_.blocks, 1, 1, kThreads, 1,
                                                              1, 0, stream, &parameters, nullptr),
                       "cuLaunchKernel"));
  }
  return Status::Ok();
}

/// Where the device cannot, this finds out with the first batch.
Status CopyStreams::WriteWord(uint64_t ticket, drivers::CUstream stream) {
  if (!writes_words_) return Status::Ok();
  const CUdeviceptr word =
      device_words_ + (ticket % CopyLimits::kBatches) * CompletionWords::kStride * sizeof(uint64_t);
  const auto result = health_->context().cuda().StreamWriteValue64(stream, word, ticket, 0);
  if (result != drivers::CUDA_ERROR_NOT_SUPPORTED) return health_->Check(result, "cuStreamWriteValue64");
  writes_words_ = false;
  return Status::Ok();
}

/// The same: a driver older than CUDA 12.8 has no such call.
Status CopyStreams::CopyBatch(drivers::CUstream stream, size_t count) {
  drivers::CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = drivers::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes.flags = drivers::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  size_t first = 0;
  const auto result = health_->context().cuda().MemcpyBatchAsync(to_.data(), from_.data(), lengths_.data(),
                                                                 count, &attributes, &first, 1, stream);
  if (result != drivers::CUDA_ERROR_NOT_SUPPORTED) return health_->Check(result, "cuMemcpyBatchAsync");
  batches_ = false;
  return CopyEach(stream, count);
}

Status CopyStreams::CopyEach(drivers::CUstream stream, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, MemcpyAsync, to_[i], from_[i], lengths_[i], stream));
  }
  return Status::Ok();
}

Result<bool> CopyStreams::AskEvent(uint64_t ticket) {
  const auto result = health_->context().cuda().EventQuery(EventOf(ticket));
  if (result == drivers::CUDA_ERROR_NOT_READY) return false;
  WC_RETURN_IF_ERROR(health_->Check(result, "cuEventQuery"));
  if (!writes_words_) words_->Word(ticket).store(ticket, std::memory_order_seq_cst);
  return words_->Over(ticket);
}

Result<bool> CopyStreams::EverythingOver() {
  drivers::Cuda& cuda = health_->context().cuda();
  for (; covered_ < streams_.size(); ++covered_) {
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, EventRecord, covers_[covered_], streams_[covered_]));
  }
  for (const drivers::CUevent cover : covers_) {
    const auto result = cuda.EventQuery(cover);
    if (result == drivers::CUDA_ERROR_NOT_READY) return false;
    WC_RETURN_IF_ERROR(health_->Check(result, "cuEventQuery"));
  }
  return true;
}

}  // namespace weightcast::device
