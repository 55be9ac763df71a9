#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "fake_cuda/host.h"

namespace weightcast::fake_cuda {
namespace {

uint64_t BufferOf(Cuda& cuda, CUdeviceptr address) {
  CUpointer_attribute name = CU_POINTER_ATTRIBUTE_BUFFER_ID;
  unsigned long long id = 0;
  void* value = &id;
  EXPECT_EQ(cuda.PointerGetAttributes(1, &name, &value, address), CUDA_SUCCESS);
  return id;
}

TEST(FakeCudaMemory, HasNoBytesForTheProcessor) {
  Host host;
  const CUdeviceptr memory = host.Alloc(8 * kMiB);
  auto* const pointer = reinterpret_cast<char*>(memory);
  char byte = 0;
  const iovec mine{&byte, 1};
  const iovec theirs{pointer, 1};
  EXPECT_EQ(process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_NE(madvise(pointer, 4096, MADV_POPULATE_WRITE), 0);
  CU_OK(host.cuda->MemFree(memory));
}

TEST(FakeCudaMemoryDeathTest, ALoadThroughADevicePointerIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Host host;
        volatile char* const pointer = reinterpret_cast<char*>(host.Alloc(kMiB));
        (void)*pointer;
        _exit(0);
      },
      // A sanitizer turns the signal into an exit.
      [](int status) { return status != 0; }, "");
}

TEST(FakeCudaMemory, NewMemoryIsNotZero) {
  Host host;
  const CUdeviceptr memory = host.Alloc(5000);
  EXPECT_TRUE(host.Holds(memory, 0xCD, 5000));
  CU_OK(host.cuda->MemFree(memory));
}

TEST(FakeCudaMemory, AnAddressComesAgainWithAnotherIdentity) {
  Host host;
  const CUdeviceptr first = host.Alloc(kMiB);
  const uint64_t buffer = BufferOf(*host.cuda, first + 100);
  host.Fill(first, 1, kMiB);
  CU_OK(host.cuda->MemFree(first));
  const CUdeviceptr second = host.Alloc(kMiB);
  EXPECT_EQ(first, second);
  EXPECT_NE(BufferOf(*host.cuda, second), buffer);
  EXPECT_TRUE(host.Holds(second, 0xCD, kMiB));
  CU_OK(host.cuda->MemFree(second));
}

TEST(FakeCudaMemory, SmallAllocationsBeginInsideAPage) {
  Host host;
  const CUdeviceptr memory = host.Alloc(100);
  EXPECT_EQ(memory % 4096, 512U);
  CUdeviceptr base = 0;
  size_t length = 0;
  CU_OK(host.cuda->MemGetAddressRange(&base, &length, memory + 99));
  EXPECT_EQ(base, memory);
  EXPECT_EQ(length, 100U);
  EXPECT_EQ(host.cuda->MemGetAddressRange(&base, &length, memory + 100), CUDA_ERROR_NOT_FOUND);
  CU_OK(host.cuda->MemFree(memory));
}

TEST(FakeCudaMemory, ADeviceIsFullAtItsSize) {
  Host host("gib=1");
  size_t free = 0;
  size_t total = 0;
  CU_OK(host.cuda->MemGetInfo(&free, &total));
  EXPECT_EQ(free, total);
  EXPECT_EQ(total, size_t{1} << 30);
  const CUdeviceptr most = host.Alloc(1000 * kMiB);
  CUdeviceptr more = 0;
  EXPECT_EQ(host.cuda->MemAlloc(&more, 100 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  CU_OK(host.cuda->MemGetInfo(&free, &total));
  EXPECT_EQ(free, 24 * kMiB);
  CU_OK(host.cuda->MemFree(most));
  const CUdeviceptr again = host.Alloc(1000 * kMiB);
  CU_OK(host.cuda->MemFree(again));
}

struct About {
  unsigned type = 9;
  unsigned long long id = 9;
  bool managed = true;
  int ordinal = 9;
  bool legacy = true;
  unsigned long long types = 9;
  void* pool = &pool;
};

About AboutOf(Cuda& cuda, CUdeviceptr address) {
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                 CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  About about;
  void* values[] = {&about.type,   &about.id,    &about.managed, &about.ordinal,
                    &about.legacy, &about.types, &about.pool};
  EXPECT_EQ(cuda.PointerGetAttributes(7, names, values, address), CUDA_SUCCESS);
  return about;
}

TEST(FakeCudaMemory, SaysWhatKindEachIs) {
  Host host;
  const CUdeviceptr plain = host.Alloc(kMiB);
  CUdeviceptr managed = 0;
  CUdeviceptr pooled = 0;
  ASSERT_EQ(fake_cuda_alloc_managed(&managed, kMiB), 0);
  ASSERT_EQ(fake_cuda_alloc_pooled(&pooled, kMiB), 0);
  std::byte* const pinned = host.Pinned(4096);

  EXPECT_EQ(AboutOf(*host.cuda, plain).type, CU_MEMORYTYPE_DEVICE);
  EXPECT_TRUE(AboutOf(*host.cuda, plain).legacy);
  EXPECT_TRUE(AboutOf(*host.cuda, managed).managed);
  EXPECT_FALSE(AboutOf(*host.cuda, managed).legacy);
  EXPECT_NE(AboutOf(*host.cuda, pooled).pool, nullptr);
  EXPECT_FALSE(AboutOf(*host.cuda, pooled).legacy);
  EXPECT_EQ(AboutOf(*host.cuda, reinterpret_cast<CUdeviceptr>(pinned)).type, CU_MEMORYTYPE_HOST);
  const About nothing = AboutOf(*host.cuda, 12345);
  EXPECT_EQ(nothing.type, 0U);
  EXPECT_EQ(nothing.id, 0U);
  EXPECT_EQ(nothing.ordinal, -2);
  EXPECT_EQ(nothing.pool, nullptr);
  CUipcMemHandle handle{};
  EXPECT_EQ(host.cuda->IpcGetMemHandle(&handle, managed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(host.cuda->IpcGetMemHandle(&handle, pooled), CUDA_ERROR_INVALID_VALUE);

  CU_OK(host.cuda->MemFree(plain));
  CU_OK(host.cuda->MemFree(managed));
  CU_OK(host.cuda->MemFree(pooled));
  CU_OK(host.cuda->MemFreeHost(pinned));
}

TEST(FakeCudaMemory, RegistersHostMemoryOnce) {
  Host host;
  std::vector<std::byte> bytes(10'000);
  CU_OK(host.cuda->MemHostRegister(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE));
  EXPECT_EQ(host.cuda->MemHostRegister(bytes.data() + 5000, 10, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr seen = 0;
  CU_OK(host.cuda->MemHostGetDevicePointer(&seen, bytes.data() + 1, 0));
  EXPECT_EQ(seen, reinterpret_cast<CUdeviceptr>(bytes.data() + 1));
  CU_OK(host.cuda->MemHostUnregister(bytes.data()));
  EXPECT_EQ(host.cuda->MemHostGetDevicePointer(&seen, bytes.data(), 0), CUDA_ERROR_INVALID_VALUE);
  void* const none = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(host.cuda->MemHostRegister(none, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  munmap(none, 4096);
}

// --- Memory in parts

TEST(FakeCudaMap, PagesMakeUpARange) {
  Host host;
  const CUdeviceptr range = host.Reserve(2 * kPage);
  std::vector<CUmemGenericAllocationHandle> handles;
  for (size_t i = 0; i < 2; ++i) {
    handles.push_back(host.Create(kPage, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CU_OK(host.cuda->MemMap(range + i * kPage, kPage, 0, handles.back(), 0));
  }
  CUdeviceptr base = 0;
  size_t length = 0;
  EXPECT_EQ(host.cuda->MemGetAddressRange(&base, &length, range), CUDA_ERROR_NOT_FOUND);
  CU_OK(host.Allow(range, 2 * kPage));
  CU_OK(host.cuda->MemGetAddressRange(&base, &length, range + kPage + 7));
  EXPECT_EQ(base, range + kPage);
  EXPECT_EQ(length, kPage);
  EXPECT_EQ(AboutOf(*host.cuda, range).types, 1U);
  EXPECT_FALSE(AboutOf(*host.cuda, range).legacy);
  host.Fill(range + kPage - 5000, 7, 10'000);  // Over the border.
  EXPECT_TRUE(host.Holds(range + kPage - 5000, 7, 10'000));
  CU_OK(host.cuda->MemUnmap(range, 2 * kPage));
  for (const auto handle : handles) CU_OK(host.cuda->MemRelease(handle));
  CU_OK(host.cuda->MemAddressFree(range, 2 * kPage));
}

TEST(FakeCudaMap, AHandleIsMappedAsAWhole) {
  Host host;
  const CUdeviceptr range = host.Reserve(4 * kPage);
  const auto handle = host.Create(2 * kPage, CU_MEM_HANDLE_TYPE_NONE);
  for (const size_t wrong : {kPage / 2, kPage, 3 * kPage, 4 * kPage}) {
    EXPECT_EQ(host.cuda->MemMap(range, wrong, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED) << wrong;
  }
  EXPECT_EQ(host.cuda->MemMap(range, 0, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  CU_OK(host.cuda->MemMap(range, 2 * kPage, 0, handle, 0));
  CU_OK(host.cuda->MemUnmap(range, 2 * kPage));
  CU_OK(host.cuda->MemRelease(handle));
  CU_OK(host.cuda->MemAddressFree(range, 4 * kPage));
}

TEST(FakeCudaMap, AHandleKeepsItsBytesWithoutAMapping) {
  Host host;
  const CUdeviceptr range = host.Reserve(kPage);
  const auto handle = host.Create(kPage, CU_MEM_HANDLE_TYPE_NONE);
  CU_OK(host.cuda->MemMap(range, kPage, 0, handle, 0));
  CU_OK(host.Allow(range, kPage));
  const uint64_t buffer = BufferOf(*host.cuda, range);
  host.Fill(range, 9, 100);
  CU_OK(host.cuda->MemUnmap(range, kPage));
  CU_OK(host.cuda->MemMap(range, kPage, 0, handle, 0));
  CU_OK(host.Allow(range, kPage));
  EXPECT_TRUE(host.Holds(range, 9, 100));
  EXPECT_NE(BufferOf(*host.cuda, range), buffer);
  CUmemGenericAllocationHandle again = 0;
  CU_OK(host.cuda->MemRetainAllocationHandle(&again, reinterpret_cast<void*>(range + 5)));
  CU_OK(host.cuda->MemRelease(handle));
  CU_OK(host.cuda->MemRelease(again));
  CU_OK(host.cuda->MemRetainAllocationHandle(&again, reinterpret_cast<void*>(range)));
  CUmemAllocationProp properties{};
  CU_OK(host.cuda->MemGetAllocationPropertiesFromHandle(&properties, again));
  EXPECT_EQ(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  int fd = -1;
  EXPECT_EQ(host.cuda->MemExportToShareableHandle(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  CU_OK(host.cuda->MemUnmap(range, kPage));
  CU_OK(host.cuda->MemRelease(again));
  CU_OK(host.cuda->MemAddressFree(range, kPage));
  EXPECT_EQ(fake_cuda_live(0).memories, 0U);
}

TEST(FakeCudaMap, ADescriptorIsTheMemory) {
  Host host;
  const auto handle = host.Create(kPage, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int fd = -1;
  CU_OK(host.cuda->MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CU_OK(host.cuda->MemRelease(handle));
  EXPECT_EQ(fake_cuda_live(0).exported, 1U);
  EXPECT_EQ(fake_cuda_live(0).memories, 1U);
  CUmemGenericAllocationHandle imported = 0;
  void* const given = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  CU_OK(host.cuda->MemImportFromShareableHandle(&imported, given, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  EXPECT_EQ(fake_cuda_live(0).exported, 0U);
  CU_OK(host.cuda->MemRelease(imported));
  EXPECT_EQ(fake_cuda_live(0).memories, 0U);
  EXPECT_EQ(host.cuda->MemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{1}),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(host.cuda->MemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{999}),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_UNKNOWN);
}

TEST(FakeCudaMap, FabricHandlesNeedImex) {
  const CUmemAllocationProp properties{
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
      .win32HandleMetaData = nullptr,
      .allocFlags = {},
  };
  CUmemGenericAllocationHandle handle = 0;
  {
    Host host;
    EXPECT_EQ(host.cuda->MemCreate(&handle, kPage, &properties, 0), CUDA_ERROR_NOT_PERMITTED);
  }
  Host host("imex=1");
  CU_OK(host.cuda->MemCreate(&handle, kPage, &properties, 0));
  CUmemFabricHandle fabric{};
  CU_OK(host.cuda->MemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  CUmemGenericAllocationHandle imported = 0;
  CU_OK(host.cuda->MemImportFromShareableHandle(&imported, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
  CU_OK(host.cuda->MemRelease(imported));
  CU_OK(host.cuda->MemRelease(handle));
}

}  // namespace
}  // namespace weightcast::fake_cuda
