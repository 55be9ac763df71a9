// Several processes of one machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/uio.h>

#include "fake_cuda/children.h"

namespace weightcast::fake_cuda {
namespace {

TEST(FakeCudaShare, ALegacyHandleOpensTheSameBytes) {
  const Folder folder;
  Child exporter([&](const Wire& wire) {
    Host host(folder.Config());
    const CUdeviceptr memory = host.Alloc(kMiB);
    host.Fill(memory, 0x11, kMiB);
    CUipcMemHandle handle{};
    CU_OK(host.cuda->IpcGetMemHandle(&handle, memory));
    wire.Send(handle);
    wire.Receive<char>();
    EXPECT_TRUE(host.Holds(memory, 0x22, kMiB));
    CU_OK(host.cuda->MemFree(memory));
  });
  Host host(folder.Config());
  const auto handle = exporter.wire().Receive<CUipcMemHandle>();
  CUdeviceptr opened = 0;
  CUdeviceptr again = 0;
  CU_OK(host.cuda->IpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CU_OK(host.cuda->IpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_EQ(opened, again);
  size_t length = 0;
  CU_OK(host.cuda->MemGetAddressRange(nullptr, &length, opened));
  EXPECT_EQ(length, kMiB);
  EXPECT_TRUE(host.Holds(opened, 0x11, kMiB));
  host.Fill(opened, 0x22, kMiB);
  CU_OK(host.cuda->IpcCloseMemHandle(opened));
  EXPECT_TRUE(host.Holds(opened, 0x22, kMiB));
  CU_OK(host.cuda->IpcCloseMemHandle(opened));
  exporter.wire().Send('x');
  EXPECT_EQ(exporter.Wait(), 0);
  EXPECT_EQ(host.cuda->IpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            CUDA_ERROR_INVALID_VALUE);
}

TEST(FakeCudaShare, FreeingWhatAnotherProcessHasOpenEndsTheProgram) {
  const Folder folder;
  Child exporter([&](const Wire& wire) {
    Host host(folder.Config());
    const CUdeviceptr memory = host.Alloc(kMiB);
    CUipcMemHandle handle{};
    CU_OK(host.cuda->IpcGetMemHandle(&handle, memory));
    wire.Send(handle);
    wire.Receive<char>();
    host.cuda->MemFree(memory);
  });
  Host host(folder.Config());
  CUdeviceptr opened = 0;
  CU_OK(host.cuda->IpcOpenMemHandle(&opened, exporter.wire().Receive<CUipcMemHandle>(),
                                    CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  exporter.wire().Send('x');
  EXPECT_EQ(exporter.Wait(), 256 + SIGABRT);
  // The mapping keeps the memory of the dead.
  EXPECT_TRUE(host.Holds(opened, 0xCD, kMiB));
  CU_OK(host.cuda->IpcCloseMemHandle(opened));
  EXPECT_EQ(fake_cuda_live(-1).memories, 0U);
}

TEST(FakeCudaShare, ADescriptorOpensTheSameBytesAndKeepsThem) {
  const Folder folder;
  Child exporter([&](const Wire& wire) {
    Host host(folder.Config());
    const CUdeviceptr range = host.Reserve(kPage);
    const auto handle = host.Create(kPage, kFd);
    CU_OK(host.cuda->MemMap(range, kPage, 0, handle, 0));
    CU_OK(host.Allow(range, kPage));
    host.Fill(range, 0x33, kPage);
    int fd = -1;
    CU_OK(host.cuda->MemExportToShareableHandle(&fd, handle, kFd, 0));
    wire.Send('x', fd);
    close(fd);
    CU_OK(host.cuda->MemUnmap(range, kPage));
    CU_OK(host.cuda->MemRelease(handle));
    CU_OK(host.cuda->MemAddressFree(range, kPage));
  });
  Host host(folder.Config());
  int fd = -1;
  exporter.wire().Receive<char>(&fd);
  EXPECT_EQ(exporter.Wait(), 0);
  // Only the descriptor is left.
  CUmemGenericAllocationHandle handle = 0;
  CU_OK(host.cuda->MemImportFromShareableHandle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                kFd));
  close(fd);
  const CUdeviceptr range = host.Reserve(kPage);
  CU_OK(host.cuda->MemMap(range, kPage, 0, handle, 0));
  CU_OK(host.cuda->MemRelease(handle));
  CU_OK(host.Allow(range, kPage));
  EXPECT_TRUE(host.Holds(range, 0x33, kPage));
  CU_OK(host.cuda->MemUnmap(range, kPage));
  CU_OK(host.cuda->MemAddressFree(range, kPage));
  EXPECT_EQ(fake_cuda_live(-1).memories, 0U);
}

TEST(FakeCudaShare, ADescriptorNobodyTakesIsCollected) {
  const Folder folder;
  Host host(folder.Config());
  const auto handle = host.Create(kPage, kFd);
  int fd = -1;
  CU_OK(host.cuda->MemExportToShareableHandle(&fd, handle, kFd, 0));
  CU_OK(host.cuda->MemRelease(handle));
  EXPECT_EQ(fake_cuda_live(-1).memories, 1U);
  close(fd);
  EXPECT_EQ(fake_cuda_live(-1).memories, 0U);
}

TEST(FakeCudaShare, NobodyReachesDeviceMemoryFromOutside) {
  const Folder folder;
  Child exporter([&](const Wire& wire) {
    Host host(folder.Config());
    const CUdeviceptr memory = host.Alloc(kMiB);
    wire.Send(memory);
    wire.Receive<char>();
    CU_OK(host.cuda->MemFree(memory));
  });
  const auto memory = exporter.wire().Receive<CUdeviceptr>();
  char byte = 0;
  const iovec mine{&byte, 1};
  const iovec theirs{reinterpret_cast<void*>(memory), 1};
  EXPECT_EQ(process_vm_readv(exporter.pid(), &mine, 1, &theirs, 1, 0), -1);
  exporter.wire().Send('x');
}

TEST(FakeCudaShare, RegisteredMemoryIsReachedInItsProcess) {
  const Folder folder;
  Host host(folder.Config());
  std::vector<unsigned char> bytes(100'000, 0x44);
  CU_OK(host.cuda->MemHostRegister(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE));
  const CUdeviceptr memory = host.Alloc(bytes.size());
  const CUstream stream = host.Stream();
  CU_OK(host.cuda->MemcpyAsync(memory, reinterpret_cast<CUdeviceptr>(bytes.data()), bytes.size(), stream));
  host.Finish(stream);
  EXPECT_TRUE(host.Holds(memory, 0x44, bytes.size()));
  host.Fill(memory, 0x55, bytes.size());
  CU_OK(
      host.cuda->MemcpyAsync(reinterpret_cast<CUdeviceptr>(bytes.data()), memory, bytes.size() - 1, stream));
  host.Finish(stream);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0x55), static_cast<long>(bytes.size() - 1));
  CU_OK(host.cuda->MemHostUnregister(bytes.data()));
  CU_OK(host.cuda->MemFree(memory));
  CU_OK(host.cuda->StreamDestroy(stream));
}

// --- Which devices a process sees

TEST(FakeCudaShare, ProcessesNumberDevicesAsTheyLike) {
  const Folder folder;
  Child other([&](const Wire& wire) {
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    Host host(folder.Config("gpus=4"));
    int count = 0;
    CU_OK(host.cuda->DeviceGetCount(&count));
    EXPECT_EQ(count, 2);
    CUuuid uuid{};
    CU_OK(host.cuda->DeviceGetUuid(&uuid, 0));
    CUipcMemHandle handle{};
    const CUdeviceptr memory = host.Alloc(kMiB);
    host.Fill(memory, 0x66, kMiB);
    CU_OK(host.cuda->IpcGetMemHandle(&handle, memory));
    wire.Send(uuid);
    wire.Send(handle);
    wire.Receive<char>();
    CU_OK(host.cuda->MemFree(memory));
  });
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  {
    Host host(folder.Config("gpus=4"));
    unsetenv("CUDA_VISIBLE_DEVICES");
    other.wire().Receive<CUuuid>();
    CUdeviceptr opened = 0;
    CU_OK(host.cuda->IpcOpenMemHandle(&opened, other.wire().Receive<CUipcMemHandle>(),
                                      CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_TRUE(host.Holds(opened, 0x66, kMiB)) << "a hidden device's memory";
    CU_OK(host.cuda->IpcCloseMemHandle(opened));
  }
  other.wire().Send('x');
}

TEST(FakeCudaShare, HiddenDevicesMayBeRefused) {
  const Folder folder;
  const std::string config = folder.Config("gpus=2,hidden=refuse");
  Child other([&](const Wire& wire) {
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    Host host(config);
    CUipcMemHandle handle{};
    const CUdeviceptr memory = host.Alloc(kMiB);
    CU_OK(host.cuda->IpcGetMemHandle(&handle, memory));
    wire.Send(handle);
    wire.Receive<char>();
    CU_OK(host.cuda->MemFree(memory));
  });
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  {
    Host host(config);
    unsetenv("CUDA_VISIBLE_DEVICES");
    CUdeviceptr opened = 0;
    EXPECT_EQ(host.cuda->IpcOpenMemHandle(&opened, other.wire().Receive<CUipcMemHandle>(),
                                          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_INVALID_DEVICE);
  }
  other.wire().Send('x');
}

TEST(FakeCudaShare, OpeningNeedsAWayBetweenTheDevices) {
  const Folder folder;
  Child other([&](const Wire& wire) {
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    Host host(folder.Config("peer=none"));
    CUipcMemHandle handle{};
    const CUdeviceptr memory = host.Alloc(kMiB);
    CU_OK(host.cuda->IpcGetMemHandle(&handle, memory));
    wire.Send(handle);
    wire.Receive<char>();
    CU_OK(host.cuda->MemFree(memory));
  });
  {
    Host host(folder.Config("peer=none"));
    CUdeviceptr opened = 0;
    EXPECT_EQ(host.cuda->IpcOpenMemHandle(&opened, other.wire().Receive<CUipcMemHandle>(),
                                          CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
              CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  }
  other.wire().Send('x');
}

}  // namespace
}  // namespace weightcast::fake_cuda
