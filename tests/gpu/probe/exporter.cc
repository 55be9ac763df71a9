#include "gpu/probe/exporter.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

enum class Ask : uint32_t { kAllocate, kCreate, kTakePages, kFree, kDifferences };

struct Order {
  Ask ask{};
  uint64_t amount = 0;  ///< Bytes or pages.
  uint64_t seed = 0;
};

struct Answer {
  CUipcMemHandle handle{};
  uint64_t value = 0;
};

/// The other side: all that is allocated.
class Stock {
 public:
  explicit Stock(int device) : device_(device), current_(device_) {}

  Answer Allocate(const Order& order) {
    Answer answer;
    allocated_.push_back(Device::Allocate(order.amount));
    Check(Driver().IpcGetMemHandle(&answer.handle, allocated_.back()), "cuIpcGetMemHandle");
    Remember(allocated_.back(), order.amount, order.seed);
    return answer;
  }

  void Create(const Order& order) {
    reserved_ = order.amount * kPage;
    Check(Driver().MemAddressReserve(&pages_, reserved_, 0, 0, 0), "cuMemAddressReserve");
    const CUmemAllocationProp wanted = Exported(device_.ordinal(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    for (uint64_t at = 0; at < reserved_; at += kPage) {
      CUmemGenericAllocationHandle handle = 0;
      Check(Driver().MemCreate(&handle, kPage, &wanted, 0), "cuMemCreate");
      Check(Driver().MemMap(pages_ + at, kPage, 0, handle, 0), "cuMemMap");
      handles_.push_back(handle);
    }
    const CUmemAccessDesc access{.location = wanted.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Check(Driver().MemSetAccess(pages_, reserved_, &access, 1), "cuMemSetAccess");
    Remember(pages_, reserved_, order.seed);
  }

  std::vector<int> TakePages() {
    std::vector<int> fds;
    for (; fds.size() < kMostDescriptors && taken_ < handles_.size(); ++taken_) {
      int fd = -1;
      Check(Driver().MemExportToShareableHandle(&fd, handles_[taken_],
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            "cuMemExportToShareableHandle");
      fds.push_back(fd);
    }
    return fds;
  }

  void Free() {
    for (const CUdeviceptr address : allocated_) Check(Driver().MemFree(address), "cuMemFree");
    allocated_.clear();
    if (reserved_ == 0) return;
    for (uint64_t at = 0; at < reserved_; at += kPage)
      Check(Driver().MemUnmap(pages_ + at, kPage), "cuMemUnmap");
    for (const auto handle : handles_) Check(Driver().MemRelease(handle), "cuMemRelease");
    Check(Driver().MemAddressFree(pages_, reserved_), "cuMemAddressFree");
    handles_.clear();
    reserved_ = 0;
  }

  uint64_t Differences(uint64_t seed) { return device_.Differences(last_, last_bytes_, seed); }

 private:
  void Remember(CUdeviceptr address, uint64_t bytes, uint64_t seed) {
    last_ = address;
    last_bytes_ = bytes;
    device_.Fill(address, bytes, seed);
  }

  Device device_;
  const Current current_;
  std::vector<CUdeviceptr> allocated_;
  CUdeviceptr pages_ = 0;
  uint64_t reserved_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
  size_t taken_ = 0;
  CUdeviceptr last_ = 0;
  uint64_t last_bytes_ = 0;
};

}  // namespace

void RunExporter(int device) {
  Stock stock(device);
  while (const auto order = Parent().TryReceive<Order>(60)) {
    Answer answer;
    std::vector<int> fds;
    if (order->ask == Ask::kAllocate) answer = stock.Allocate(*order);
    if (order->ask == Ask::kCreate) stock.Create(*order);
    if (order->ask == Ask::kTakePages) fds = stock.TakePages();
    if (order->ask == Ask::kFree) stock.Free();
    if (order->ask == Ask::kDifferences) answer.value = stock.Differences(order->seed);
    Parent().Send(answer, fds);
    for (const int fd : fds) close(fd);
  }
}

CUipcMemHandle Exporter::Allocate(uint64_t bytes, uint64_t seed) {
  peer_.channel().Send(Order{Ask::kAllocate, bytes, seed});
  return peer_.channel().Receive<Answer>().handle;
}

void Exporter::Create(uint64_t pages, uint64_t seed) {
  peer_.channel().Send(Order{Ask::kCreate, pages, seed});
  (void)peer_.channel().Receive<Answer>();
}

std::vector<int> Exporter::TakePages() {
  std::vector<int> fds;
  peer_.channel().Send(Order{.ask = Ask::kTakePages});
  (void)peer_.channel().Receive<Answer>(&fds);
  return fds;
}

bool Exporter::Free() {
  peer_.channel().Send(Order{.ask = Ask::kFree});
  return peer_.channel().TryReceive<Answer>(kPatience).has_value();
}

uint64_t Exporter::Differences(uint64_t seed) {
  peer_.channel().Send(Order{Ask::kDifferences, 0, seed});
  return peer_.channel().Receive<Answer>().value;
}

CUdeviceptr OpenLegacy(const CUipcMemHandle& handle) {
  CUdeviceptr opened = 0;
  Check(Driver().IpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
  return opened;
}

ImportedPages::ImportedPages(const Device& device, uint64_t pages)
    : device_(device), reserved_(pages * kPage) {
  Check(Driver().MemAddressReserve(&address_, reserved_, 0, 0, 0), "cuMemAddressReserve");
}

void ImportedPages::Map(const std::vector<int>& fds) {
  for (const int fd : fds) {
    CUmemGenericAllocationHandle handle = 0;
    Check(Driver().MemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
    Check(Driver().MemMap(address_ + mapped_, kPage, 0, handle, 0), "cuMemMap");
    Check(Driver().MemRelease(handle), "cuMemRelease");  // The mapping keeps the memory.
    close(fd);
    mapped_ += kPage;
  }
}

CUresult ImportedPages::Allow(CUmemAccess_flags flags) const {
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_.ordinal()};
  access.flags = flags;
  return Driver().MemSetAccess(address_, mapped_, &access, 1);
}

CUresult ImportedPages::Unmap() {
  CUresult first = CUDA_SUCCESS;
  const auto note = [&first](CUresult result) {
    if (first == CUDA_SUCCESS) first = result;
  };
  for (uint64_t at = 0; at < mapped_; at += kPage) note(Driver().MemUnmap(address_ + at, kPage));
  note(Driver().MemAddressFree(address_, reserved_));
  return first;
}

CUmemAllocationProp Exported(int device, CUmemAllocationHandleType types) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = types;
  wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return wanted;
}

}  // namespace probe
