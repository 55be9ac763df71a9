// Each thing that a program must not do ends it with a sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "child_process.h"
#include "fake_cuda/host.h"

namespace weightcast::fake_cuda {
namespace {

/// The program ends inside `misuse` with this sentence.
void Dies(const std::function<void(Host&)>& misuse, const std::string& sentence,
          const std::string& config = "") {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Host host(config);
        misuse(host);
      },
      "fake_cuda: " + sentence);
}

// --- Contexts

TEST(FakeCudaStrictDeathTest, ACallWithoutAContext) {
  Dies(
      [](Host& host) {
        CUcontext context{};
        host.cuda->CtxPopCurrent(&context);
        host.Alloc(100);
      },
      "cuMemAlloc: called without a context");
}

TEST(FakeCudaStrictDeathTest, AnotherThreadHasNoContext) {
  Dies([](Host& host) { std::thread([&] { host.Stream(); }).join(); },
       "cuStreamCreateWithPriority: called without a context");
}

/// Device 1's context, current until the end.
struct Second {
  explicit Second(Host& owner) : cuda(*owner.cuda) {
    CUcontext context{};
    cuda.DevicePrimaryCtxRetain(&context, 1);
    cuda.CtxPushCurrent(context);
  }
  Cuda& cuda;
};

TEST(FakeCudaStrictDeathTest, AStreamOfAnotherContext) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(100);
        const CUstream stream = host.Stream();
        const Second second(host);
        host.cuda->MemsetD8Async(memory, 1, 100, stream);
      },
      "cuMemsetD8Async: the stream is of another context");
}

TEST(FakeCudaStrictDeathTest, AnEventOfAnotherContext) {
  Dies(
      [](Host& host) {
        const CUevent event = host.Event();
        const Second second(host);
        host.cuda->EventRecord(event, host.Stream());
      },
      "cuEventRecord: the event is of another context");
}

TEST(FakeCudaStrictDeathTest, AContextThatWasReleased) {
  Dies(
      [](Host& host) {
        host.cuda->DevicePrimaryCtxRelease(0);
        host.Alloc(100);
      },
      "cuMemAlloc: the current context was released");
}

TEST(FakeCudaStrictDeathTest, ReleasingMoreOftenThanRetaining) {
  Dies(
      [](Host& host) {
        host.cuda->DevicePrimaryCtxRelease(0);
        host.cuda->DevicePrimaryCtxRelease(0);
      },
      "cuDevicePrimaryCtxRelease: the context was released more often than retained");
}

TEST(FakeCudaStrictDeathTest, ReleasingAContextWhileObjectsLive) {
  Dies(
      [](Host& host) {
        host.Alloc(100);
        host.Event();
        host.cuda->DevicePrimaryCtxRelease(0);
      },
      "cuDevicePrimaryCtxRelease: .*2 objects of it live: 1 memory, 0 streams, 1 events");
}

TEST(FakeCudaStrictDeathTest, ACallAfterFork) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Host host;
        test::Process child = test::Process::Fork([&] {
          host.Alloc(100);
          return 0;
        });
        if (child.Wait() == 256 + SIGABRT) abort();
        _exit(0);
      },
      "fake_cuda: cuMemAlloc: called in a child after fork");
}

// --- Objects that are gone

TEST(FakeCudaStrictDeathTest, ADestroyedStream) {
  Dies(
      [](Host& host) {
        const CUstream stream = host.Stream();
        host.cuda->StreamDestroy(stream);
        host.Stream();
        host.cuda->EventRecord(host.Event(), stream);
      },
      "cuEventRecord: the stream was destroyed");
}

TEST(FakeCudaStrictDeathTest, ADestroyedEvent) {
  Dies(
      [](Host& host) {
        const CUevent event = host.Event();
        host.cuda->EventDestroy(event);
        host.Event();
        host.cuda->EventQuery(event);
      },
      "cuEventQuery: the event was destroyed");
}

TEST(FakeCudaStrictDeathTest, AReleasedHandle) {
  Dies(
      [](Host& host) {
        const auto handle = host.Create(kPage, 1);
        host.cuda->MemRelease(handle);
        host.cuda->MemRelease(handle);
      },
      "cuMemRelease: the handle was released");
}

TEST(FakeCudaStrictDeathTest, FreeingTwice) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(100);
        host.cuda->MemFree(memory);
        host.cuda->MemFree(memory);
      },
      "cuMemFree: 0x[0-9a-f]+ was freed, or never was allocated");
}

TEST(FakeCudaStrictDeathTest, FreeingTheMiddle) {
  Dies([](Host& host) { host.cuda->MemFree(host.Alloc(100) + 8); }, "cuMemFree: .* never was allocated");
}

TEST(FakeCudaStrictDeathTest, AModuleThatWasUnloaded) {
  Dies(
      [](Host& host) {
        CUmodule module{};
        host.cuda->ModuleLoadDataEx(&module, ".version 7.0\n.target sm_80\n", 0, nullptr, nullptr);
        host.cuda->ModuleUnload(module);
        CUfunction function{};
        host.cuda->ModuleGetFunction(&function, module, "fill");
      },
      "cuModuleGetFunction: the module was unloaded");
}

TEST(FakeCudaStrictDeathTest, AKernelWithoutAHostVersion) {
  Dies(
      [](Host& host) {
        CUmodule module{};
        host.cuda->ModuleLoadDataEx(&module, ".version 7.0\n.target sm_80\n.entry of_nobody()\n{}\n", 0,
                                    nullptr, nullptr);
        CUfunction function{};
        host.cuda->ModuleGetFunction(&function, module, "of_nobody");
      },
      "cuModuleGetFunction: kernel of_nobody has no host version");
}

// --- Bytes

TEST(FakeCudaStrictDeathTest, CopyingFreedMemory) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(kMiB);
        const CUdeviceptr other = host.Alloc(kMiB);
        host.cuda->MemFree(memory);
        host.cuda->MemcpyAsync(other, memory, 100, host.Stream());
      },
      "cuMemcpyAsync: 0x[0-9a-f]+ is no device memory");
}

TEST(FakeCudaStrictDeathTest, CopyingBeyondTheEnd) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(1000);
        const CUdeviceptr other = host.Alloc(kMiB);
        host.cuda->MemcpyAsync(other, memory + 500, 501, host.Stream());
      },
      "cuMemcpyAsync: the copy goes beyond the end of its allocation");
}

TEST(FakeCudaStrictDeathTest, CopyingToHostMemoryThatIsNotPinned) {
  Dies(
      [](Host& host) {
        std::vector<std::byte> bytes(100);
        host.cuda->MemcpyAsync(Number(bytes.data()), host.Alloc(100), 100, host.Stream());
      },
      "cuMemcpyAsync: 0x[0-9a-f]+ is host memory that is not pinned");
}

TEST(FakeCudaStrictDeathTest, AValueAtAnOddAddress) {
  Dies([](Host& host) { host.cuda->StreamWriteValue64(host.Stream(), Number(host.Pinned(100)) + 4, 1, 0); },
       "cuStreamWriteValue64: 0x[0-9a-f]+ is no multiple of 8");
}

TEST(FakeCudaStrictDeathTest, ABatchThatWritesTheSameBytesTwice) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(kMiB);
        const CUdeviceptr to[] = {memory, memory + 50};
        const CUdeviceptr from[] = {memory + 1000, memory + 2000};
        const size_t lengths[] = {51, 50};
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        size_t first = 0;
        host.cuda->MemcpyBatchAsync(to, from, lengths, 2, &attributes, &first, 1, host.Stream());
      },
      "cuMemcpyBatchAsync: two copies of the batch write the same bytes");
}

TEST(FakeCudaStrictDeathTest, ABatchThatReadsWhatItWrites) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(kMiB);
        const CUdeviceptr to[] = {memory, memory + 500};
        const CUdeviceptr from[] = {memory + 1000, memory + 99};
        const size_t lengths[] = {100, 50};
        CUmemcpyAttributes attributes{};
        attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        size_t first = 0;
        host.cuda->MemcpyBatchAsync(to, from, lengths, 2, &attributes, &first, 1, host.Stream());
      },
      "cuMemcpyBatchAsync: a copy of the batch reads what another one writes");
}

TEST(FakeCudaStrictDeathTest, ABatchInADefaultStream) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(kMiB);
        const CUdeviceptr to = memory + 500;
        const size_t length = 100;
        CUmemcpyAttributes attributes{};
        size_t first = 0;
        host.cuda->MemcpyBatchAsync(&to, &memory, &length, 1, &attributes, &first, 1, nullptr);
      },
      "cuMemcpyBatchAsync: a batch cannot run in a default stream");
}

// --- What a copy still uses

/// A copy from device memory to pinned memory that has not begun.
struct Pending {
  explicit Pending(Host& host) : device(host.Alloc(10 * kPiece)), pinned(host.Pinned(10 * kPiece)) {
    host.cuda->MemcpyAsync(Number(pinned), device, 10 * kPiece, host.Stream());
  }
  CUdeviceptr device;
  std::byte* pinned;
};

TEST(FakeCudaStrictDeathTest, FreeingWhatACopyUses) {
  Dies([](Host& host) { host.cuda->MemFree(Pending(host).device); },
       "cuMemFree: .* is still used by a copy that is not over");
}

TEST(FakeCudaStrictDeathTest, FreeingPinnedMemoryThatACopyUses) {
  Dies([](Host& host) { host.cuda->MemFreeHost(Pending(host).pinned); },
       "cuMemFreeHost: .* is still used by a copy");
}

TEST(FakeCudaStrictDeathTest, UnregisteringWhatACopyUses) {
  Dies(
      [](Host& host) {
        std::vector<std::byte> bytes(100);
        host.cuda->MemHostRegister(bytes.data(), bytes.size(), 0);
        host.cuda->MemcpyAsync(Number(bytes.data()), host.Alloc(100), 100, host.Stream());
        host.cuda->MemHostUnregister(bytes.data());
      },
      "cuMemHostUnregister: .* is still used by a copy");
}

TEST(FakeCudaStrictDeathTest, UnmappingWhatACopyUses) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(kPage);
        host.cuda->MemMap(range, kPage, 0, host.Create(kPage, 1), 0);
        host.Allow(range, kPage);
        host.cuda->MemsetD8Async(range, 1, 100, host.Stream());
        host.cuda->MemUnmap(range, kPage);
      },
      "cuMemUnmap: .* is still used by a copy");
}

TEST(FakeCudaStrictDeathTest, AWaitThatNeverEnds) {
  Dies(
      [](Host& host) {
        const Pending pending(host);
        fake_cuda_hold(0);
        host.Finish(host.Stream());
      },
      "cuEventSynchronize: waits for ever: nothing can run");
}

TEST(FakeCudaStrictDeathTest, AStreamThatIsFull) {
  Dies(
      [](Host& host) {
        const CUdeviceptr memory = host.Alloc(100);
        const CUstream stream = host.Stream();
        for (int i = 0; i <= 1024; ++i) host.cuda->MemsetD8Async(memory, 1, 100, stream);
      },
      "cuMemsetD8Async: the stream is full: this call would wait for ever");
}

// --- Mappings

TEST(FakeCudaStrictDeathTest, MappingTwice) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(2 * kPage);
        host.cuda->MemMap(range, kPage, 0, host.Create(kPage, 1), 0);
        host.cuda->MemMap(range, kPage, 0, host.Create(kPage, 1), 0);
      },
      "cuMemMap: there is a mapping at 0x[0-9a-f]+ already");
}

TEST(FakeCudaStrictDeathTest, MappingWhatWasNotReserved) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(kPage);
        host.cuda->MemMap(range, 2 * kPage, 0, host.Create(2 * kPage, 1), 0);
      },
      "cuMemMap: 0x[0-9a-f]+ was not reserved");
}

TEST(FakeCudaStrictDeathTest, UnmappingHalfAMapping) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(2 * kPage);
        host.cuda->MemMap(range, 2 * kPage, 0, host.Create(2 * kPage, 1), 0);
        host.cuda->MemUnmap(range, kPage);
      },
      "cuMemUnmap: a mapping cannot be divided");
}

TEST(FakeCudaStrictDeathTest, UnmappingWhatIsNotMapped) {
  Dies([](Host& host) { host.cuda->MemUnmap(host.Reserve(kPage), kPage); },
       "cuMemUnmap: no mapping begins at");
}

TEST(FakeCudaStrictDeathTest, FreeingAddressesWithAMapping) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(kPage);
        host.cuda->MemMap(range, kPage, 0, host.Create(kPage, 1), 0);
        host.cuda->MemAddressFree(range, kPage);
      },
      "cuMemAddressFree: memory is still mapped");
}

TEST(FakeCudaStrictDeathTest, FreeingOtherAddressesThanReserved) {
  Dies([](Host& host) { host.cuda->MemAddressFree(host.Reserve(2 * kPage), kPage); },
       "cuMemAddressFree: 0x[0-9a-f]+ is no reservation of 2097152 bytes");
}

TEST(FakeCudaStrictDeathTest, CopyingWithoutAccess) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(kPage);
        host.cuda->MemMap(range, kPage, 0, host.Create(kPage, 1), 0);
        host.cuda->MemsetD8Async(range, 1, 100, host.Stream());
      },
      "cuMemsetD8Async: 0x[0-9a-f]+ is mapped, but cuMemSetAccess was not called");
}

TEST(FakeCudaStrictDeathTest, CopyingWithAnotherDevicesAccess) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(kPage);
        host.cuda->MemMap(range, kPage, 0, host.Create(kPage, 1), 0);
        host.Allow(range, kPage, 1);
        host.cuda->MemsetD8Async(range, 1, 100, host.Stream());
      },
      "cuMemsetD8Async: 0x[0-9a-f]+ may not be written by device 0");
}

TEST(FakeCudaStrictDeathTest, WritingWhatMayOnlyBeRead) {
  Dies(
      [](Host& host) {
        const CUdeviceptr range = host.Reserve(kPage);
        host.cuda->MemMap(range, kPage, 0, host.Create(kPage, 1), 0);
        host.Allow(range, kPage, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
        host.cuda->MemcpyAsync(range, host.Alloc(100), 100, host.Stream());
      },
      "cuMemcpyAsync: 0x[0-9a-f]+ may not be written by device 0");
}

// --- Sharing and capture

TEST(FakeCudaStrictDeathTest, OpeningALegacyHandleAtHome) {
  Dies(
      [](Host& host) {
        CUipcMemHandle handle{};
        host.cuda->IpcGetMemHandle(&handle, host.Alloc(kMiB));
        CUdeviceptr opened = 0;
        host.cuda->IpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      },
      "cuIpcOpenMemHandle: a legacy handle cannot be opened in the process that made it");
}

TEST(FakeCudaStrictDeathTest, ALegacyHandleOfTheMiddle) {
  Dies(
      [](Host& host) {
        CUipcMemHandle handle{};
        host.cuda->IpcGetMemHandle(&handle, host.Alloc(kMiB) + 512);
      },
      "cuIpcGetMemHandle: 0x[0-9a-f]+ is not the beginning of its allocation");
}

TEST(FakeCudaStrictDeathTest, ClosingWhatWasNotOpened) {
  Dies([](Host& host) { host.cuda->IpcCloseMemHandle(host.Alloc(kMiB)); },
       "cuIpcCloseMemHandle: .* never came from cuIpcOpenMemHandle");
}

TEST(FakeCudaStrictDeathTest, WorkInAStreamThatIsCaptured) {
  Dies(
      [](Host& host) {
        const CUstream stream = host.Stream();
        fake_cuda_capture(stream, 1);
        host.cuda->EventRecord(host.Event(), stream);
      },
      "cuEventRecord: the stream is being captured");
}

TEST(FakeCudaStrictDeathTest, ALaunchWithoutParameters) {
  Dies(
      [](Host& host) {
        CUmodule module{};
        host.cuda->ModuleLoadDataEx(&module,
                                    ".version 7.0\n.target sm_80\n.entry fake_fill(.param .b8 p[24])\n{}\n",
                                    0, nullptr, nullptr);
        CUfunction function{};
        host.cuda->ModuleGetFunction(&function, module, "fake_fill");
        host.cuda->LaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, host.Stream(), nullptr, nullptr);
      },
      "cuLaunchKernel: parameter 0 of fake_fill is missing");
}

TEST(FakeCudaStrictDeathTest, ABlockThatIsTooLarge) {
  Dies(
      [](Host& host) {
        CUmodule module{};
        host.cuda->ModuleLoadDataEx(&module, ".version 7.0\n.target sm_80\n.entry fake_fill()\n{}\n", 0,
                                    nullptr, nullptr);
        CUfunction function{};
        host.cuda->ModuleGetFunction(&function, module, "fake_fill");
        host.cuda->LaunchKernel(function, 1, 1, 1, 1024, 2, 1, 0, host.Stream(), nullptr, nullptr);
      },
      "cuLaunchKernel: a block of 2048 threads");
}

TEST(FakeCudaStrictDeathTest, SettingsThatAreWrong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Host("gpu=4"), "fake_cuda: FAKE_CUDA: there is no gpu=4");
  EXPECT_DEATH(Host("gpus=many"), "fake_cuda: FAKE_CUDA: gpus must be a number up to 16");
  EXPECT_DEATH(Host("peer=0_1"), "fake_cuda: FAKE_CUDA: peer must be all, none or pairs");
}

}  // namespace
}  // namespace weightcast::fake_cuda
