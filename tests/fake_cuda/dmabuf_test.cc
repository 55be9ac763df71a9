// Dma-bufs: what the driver gives, and what another device does with them.
#include "fake_cuda/dmabuf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "fake_cuda/host.h"

namespace weightcast::fake_cuda {
namespace {

constexpr size_t kHostPage = 4096;

class FakeDmaBuf : public ::testing::Test {
 protected:
  /// -1: `result` says why.
  int Export(Host& host, CUdeviceptr address, size_t length) {
    int fd = -1;
    result =
        host.cuda->MemGetHandleForAddressRange(&fd, address, length, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    return fd;
  }
  /// Memory of cuMemCreate in two handles, side by side.
  struct Pages {
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handles[2]{};
  };
  static Pages Map(Host& host, bool rdma) {
    Pages pages{.address = host.Reserve(2 * kPage)};
    for (size_t i = 0; i < 2; ++i) {
      CUmemAllocationProp wanted{};
      wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
      wanted.allocFlags.gpuDirectRDMACapable = rdma ? 1 : 0;
      EXPECT_EQ(host.cuda->MemCreate(&pages.handles[i], kPage, &wanted, 0), CUDA_SUCCESS);
      EXPECT_EQ(host.cuda->MemMap(pages.address + i * kPage, kPage, 0, pages.handles[i], 0), CUDA_SUCCESS);
    }
    return pages;
  }
  static void Unmap(Host& host, const Pages& pages) {
    EXPECT_EQ(host.cuda->MemUnmap(pages.address, 2 * kPage), CUDA_SUCCESS);
    for (const auto handle : pages.handles) host.cuda->MemRelease(handle);
    host.cuda->MemAddressFree(pages.address, 2 * kPage);
  }

  CUresult result = CUDA_SUCCESS;
};

TEST_F(FakeDmaBuf, ReachesTheDevicesBytesAndKeepsThem) {
  Host host;
  const CUdeviceptr memory = host.Alloc(2 * kMiB);
  host.Fill(memory, 1, 2 * kMiB);
  const int fd = Export(host, memory + kHostPage, 3 * kHostPage);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  // Twice: what one device has read of it is there for the next.
  for (unsigned char value = 2; value < 4; ++value) {
    auto* const bytes = static_cast<unsigned char*>(MapDmaBuf(fd, kHostPage, 2 * kHostPage));
    ASSERT_NE(bytes, nullptr);
    EXPECT_EQ(bytes[0], value - 1);
    std::fill_n(bytes, 2 * kHostPage, value);
    munmap(bytes, 2 * kHostPage);
    EXPECT_TRUE(host.Holds(memory + 2 * kHostPage, value, 2 * kHostPage));
    EXPECT_TRUE(host.Holds(memory, 1, 2 * kHostPage));
    EXPECT_TRUE(host.Holds(memory + 4 * kHostPage, 1, kHostPage));
  }
  EXPECT_EQ(MapDmaBuf(fd, kHostPage, 3 * kHostPage), nullptr) << "it has no such bytes";
  const int pipe_like = dup(fd);
  EXPECT_EQ(fake_cuda_live(-1).dmabufs, 1U);
  close(fd);
  EXPECT_EQ(fake_cuda_live(-1).dmabufs, 1U);
  EXPECT_EQ(fake_cuda_live(-1).torn, 0U);
  CU_OK(host.cuda->MemFree(memory));
  EXPECT_EQ(fake_cuda_live(-1).torn, 1U);
  EXPECT_EQ(fake_cuda_live(-1).memories, 1U) << "the kernel keeps it";
  close(pipe_like);
  EXPECT_EQ(fake_cuda_live(-1).dmabufs, 0U);
  EXPECT_EQ(fake_cuda_live(-1).memories, 0U);
}

TEST_F(FakeDmaBuf, RunsOverMappings) {
  Host host;
  const Pages pages = Map(host, true);
  EXPECT_LT(Export(host, pages.address, 2 * kPage), 0) << "no device may touch it yet";
  CU_OK(host.Allow(pages.address, 2 * kPage));
  host.Fill(pages.address, 1, 2 * kPage);
  const int fd = Export(host, pages.address + kPage - kHostPage, 2 * kHostPage);
  ASSERT_GE(fd, 0);
  auto* const bytes = static_cast<unsigned char*>(MapDmaBuf(fd, 0, 2 * kHostPage));
  ASSERT_NE(bytes, nullptr);
  std::fill_n(bytes, 2 * kHostPage, 2);
  munmap(bytes, 2 * kHostPage);
  close(fd);
  EXPECT_TRUE(host.Holds(pages.address + kPage - kHostPage, 2, 2 * kHostPage));
  EXPECT_TRUE(host.Holds(pages.address + kPage + kHostPage, 1, kHostPage));
  Unmap(host, pages);
  EXPECT_EQ(fake_cuda_live(-1).torn, 0U);
}

TEST_F(FakeDmaBuf, IsOfWholePagesOfPlainMemory) {
  Host host;
  const CUdeviceptr memory = host.Alloc(2 * kMiB);
  const CUdeviceptr small = host.Alloc(100);
  CUdeviceptr pooled = 0;
  CUdeviceptr managed = 0;
  ASSERT_EQ(fake_cuda_alloc_pooled(&pooled, 2 * kMiB), 0);
  ASSERT_EQ(fake_cuda_alloc_managed(&managed, 2 * kMiB), 0);
  const Pages pages = Map(host, false);
  CU_OK(host.Allow(pages.address, 2 * kPage));
  struct {
    CUdeviceptr address;
    size_t length;
  } wrong[] = {{memory + 512, kHostPage},      {memory, 100},         {memory, 0},
               {memory, 2 * kMiB + kHostPage}, {small, kHostPage},    {pooled, kHostPage},
               {managed, kHostPage},           {pages.address, kPage}};
  for (const auto& each : wrong) {
    EXPECT_LT(Export(host, each.address, each.length), 0) << each.length;
    EXPECT_EQ(result, CUDA_ERROR_INVALID_VALUE);
  }
  // The page in which a small allocation lies.
  const int fd = Export(host, small / kHostPage * kHostPage, kHostPage);
  EXPECT_GE(fd, 0);
  close(fd);
  int unused = 0;
  EXPECT_EQ(host.cuda->MemGetHandleForAddressRange(&unused, memory, kHostPage,
                                                   CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 1),
            CUDA_ERROR_INVALID_VALUE);
  for (const CUdeviceptr address : {memory, small, pooled, managed}) CU_OK(host.cuda->MemFree(address));
  Unmap(host, pages);
}

TEST_F(FakeDmaBuf, ADriverMayHaveNone) {
  Host host("dmabuf=0");
  const CUdeviceptr memory = host.Alloc(2 * kMiB);
  int value = 1;
  CU_OK(host.cuda->DeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0));
  EXPECT_EQ(value, 0);
  EXPECT_LT(Export(host, memory, kHostPage), 0);
  EXPECT_EQ(result, CUDA_ERROR_NOT_SUPPORTED);
  const int fd = fake_cuda_peermem(memory + 100, 100);
  EXPECT_GE(fd, 0) << "nvidia-peermem asks for none";
  close(fd);
  CU_OK(host.cuda->MemFree(memory));
  EXPECT_EQ(fake_cuda_peermem(memory, 100), -1);
}

}  // namespace
}  // namespace weightcast::fake_cuda
