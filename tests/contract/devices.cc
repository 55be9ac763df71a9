#include "contract/devices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/strings.h"
#include "fake_cuda/fake_cuda.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

using drivers::CUdeviceptr;

constexpr size_t kStaging = 4U << 20;

void Expect(drivers::CUresult result, std::string_view call) {
  Require(result == drivers::CUDA_SUCCESS, StrCat(call, " gives ", static_cast<int>(result)));
}

CUdeviceptr Number(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

uint64_t BytesStaged() { return trace::CounterNamed("gpu.staged_bytes").value(); }

CurrentContext::CurrentContext(drivers::Cuda& cuda, drivers::CUcontext context) : cuda_(cuda) {
  Expect(cuda.CtxPushCurrent(context), "cuCtxPushCurrent");
  mode_ = drivers::CU_STREAM_CAPTURE_MODE_RELAXED;
  cuda.ThreadExchangeStreamCaptureMode(&mode_);
}

CurrentContext::~CurrentContext() {
  cuda_.ThreadExchangeStreamCaptureMode(&mode_);
  drivers::CUcontext popped{};
  cuda_.CtxPopCurrent(&popped);
}

bool OnFakeDriver() { return std::getenv("WC_TEST_CUDA") == nullptr; }

FakeMachine::FakeMachine(std::string config) {
  path_ = testing::TempDir() + "contract_cuda_XXXXXX";
  Require(mkdtemp(path_.data()) != nullptr, "mkdtemp");
  const auto given = [](const char* name, const char* otherwise) {
    const char* const value = std::getenv(name);
    return value != nullptr ? value : otherwise;
  };
  config_ = StrCat("dir=", path_, ",gpus=2,seed=", given("WC_TEST_SEED", "1"),
                   ",delay_us=", given("WC_TEST_DELAY_US", "0"), config.empty() ? "" : ",", config);
}

FakeMachine::~FakeMachine() {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::is_empty(path_) && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(std::filesystem::is_empty(path_)) << "something of the machine is left in " << path_;
  std::filesystem::remove_all(path_);
}

DevicesInUse::DevicesInUse(const FakeMachine& machine) {
  if (OnFakeDriver()) {
    setenv("WEIGHTCAST_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
    fake_cuda_start(machine.config().c_str());
  }
  auto loaded = drivers::LoadCuda(drivers::CudaUse::kAsked);
  Require(loaded.ok(), loaded.status().message());
  cuda_ = std::move(loaded).value();
  Expect(cuda_->Init(0), "cuInit");
  int count = 0;
  Expect(cuda_->DeviceGetCount(&count), "cuDeviceGetCount");
  for (int ordinal = 0; ordinal < std::min(count, 2); ++ordinal) {
    Part part;
    Expect(cuda_->DevicePrimaryCtxRetain(&part.context, ordinal), "cuDevicePrimaryCtxRetain");
    const CurrentContext current(*cuda_, part.context);
    Expect(cuda_->StreamCreateWithPriority(&part.stream, drivers::CU_STREAM_NON_BLOCKING, 0),
           "cuStreamCreateWithPriority");
    Expect(cuda_->MemHostAlloc(&part.pinned, kStaging, drivers::CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
    parts_.push_back(part);
  }
  current_ = this;
}

DevicesInUse::~DevicesInUse() {
  current_ = nullptr;
  for (size_t i = 0; i < parts_.size(); ++i) {
    {
      const CurrentContext current(*cuda_, parts_[i].context);
      cuda_->StreamDestroy(parts_[i].stream);
      cuda_->MemFreeHost(parts_[i].pinned);
    }
    cuda_->DevicePrimaryCtxRelease(static_cast<int>(i));
  }
  if (!OnFakeDriver()) return;
  EXPECT_EQ(fake_cuda_disturbing(), 0U) << "calls that would have spoilt a capture";
  const uint64_t left = fake_cuda_stop();
  EXPECT_TRUE(leftovers_ || left == 0) << left << " objects of the driver are left";
}

void DevicesInUse::AwaitBurial(int pid) {
  const auto limit = Clock::now() + kPatience;
  while (OnFakeDriver() && fake_cuda_live(pid).processes > 0) {
    Require(Clock::now() < limit, "the driver keeps a dead process's things");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Memory DevicesInUse::Allocate(size_t size, bool exportable) {
  const int ordinal = next_++ % static_cast<int>(parts_.size());
  const CurrentContext current(*cuda_, context(ordinal));
  CUdeviceptr address = 0;
  if (exportable) {
    Expect(cuda_->MemAlloc(&address, size), "cuMemAlloc");
  } else {
    address = CreateSecluded(ordinal, size);
  }
  return {.kind = MemoryKind::kDevice,
          .device = ordinal,
          .address = reinterpret_cast<std::byte*>(address),
          .length = size};
}

CUdeviceptr DevicesInUse::CreateSecluded(int ordinal, size_t size) {
  constexpr size_t kPage = 2U << 20;
  Secluded made{.length = (size + kPage - 1) / kPage * kPage};
  drivers::CUmemAllocationProp wanted{};
  wanted.type = drivers::CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = drivers::CU_MEM_HANDLE_TYPE_NONE;
  wanted.location = {.type = drivers::CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  CUdeviceptr address = 0;
  Expect(cuda_->MemAddressReserve(&address, made.length, 0, 0, 0), "cuMemAddressReserve");
  Expect(cuda_->MemCreate(&made.handle, made.length, &wanted, 0), "cuMemCreate");
  Expect(cuda_->MemMap(address, made.length, 0, made.handle, 0), "cuMemMap");
  const drivers::CUmemAccessDesc access{.location = wanted.location,
                                        .flags = drivers::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Expect(cuda_->MemSetAccess(address, made.length, &access, 1), "cuMemSetAccess");
  secluded_[address] = made;
  return address;
}

void DevicesInUse::FreeSecluded(CUdeviceptr address) {
  const Secluded freed = secluded_.extract(address).mapped();
  const auto expect = [this](drivers::CUresult result, std::string_view call) {
    if (!leftovers_) Expect(result, call);
  };
  expect(cuda_->MemUnmap(address, freed.length), "cuMemUnmap");
  expect(cuda_->MemRelease(freed.handle), "cuMemRelease");
  expect(cuda_->MemAddressFree(address, freed.length), "cuMemAddressFree");
}

void DevicesInUse::Free(const Memory& memory) {
  const CurrentContext current(*cuda_, context(memory.device));
  if (secluded_.contains(Number(memory.address))) return FreeSecluded(Number(memory.address));
  const auto result = cuda_->MemFree(Number(memory.address));
  if (!leftovers_) Expect(result, "cuMemFree");
}

void DevicesInUse::Finish(int ordinal) {
  drivers::CUevent event{};
  Expect(cuda_->EventCreate(&event, drivers::CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  Expect(cuda_->EventRecord(event, parts_[Index(ordinal)].stream), "cuEventRecord");
  Expect(cuda_->EventSynchronize(event), "cuEventSynchronize");
  Expect(cuda_->EventDestroy(event), "cuEventDestroy");
}

void DevicesInUse::Copy(int ordinal, CUdeviceptr to, CUdeviceptr from, size_t length) {
  Expect(cuda_->MemcpyAsync(to, from, length, parts_[Index(ordinal)].stream), "cuMemcpyAsync");
  Finish(ordinal);
}

void DevicesInUse::Write(const Memory& memory, size_t offset, std::span<const std::byte> bytes) {
  const CurrentContext current(*cuda_, context(memory.device));
  void* const pinned = parts_[Index(memory.device)].pinned;
  for (size_t at = 0; at < bytes.size(); at += kStaging) {
    const size_t length = std::min(kStaging, bytes.size() - at);
    std::memcpy(pinned, &bytes[at], length);
    Copy(memory.device, Number(memory.address) + offset + at, Number(pinned), length);
  }
}

void DevicesInUse::Read(const Memory& memory, size_t offset, std::span<std::byte> bytes) {
  const CurrentContext current(*cuda_, context(memory.device));
  void* const pinned = parts_[Index(memory.device)].pinned;
  for (size_t at = 0; at < bytes.size(); at += kStaging) {
    const size_t length = std::min(kStaging, bytes.size() - at);
    Copy(memory.device, Number(pinned), Number(memory.address) + offset + at, length);
    std::memcpy(&bytes[at], pinned, length);
  }
}

void DevicesInUse::Set(const Memory& memory, size_t offset, std::byte value, size_t length) {
  const CurrentContext current(*cuda_, context(memory.device));
  Expect(cuda_->MemsetD8Async(Number(memory.address) + offset, static_cast<unsigned char>(value), length,
                              parts_[Index(memory.device)].stream),
         "cuMemsetD8Async");
  Finish(memory.device);
}

}  // namespace weightcast::transport
