// The process that plays the GPU, and the deaths of its clients.
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "fake_cuda/addresses.h"
#include "fake_cuda/children.h"

namespace weightcast::fake_cuda {
namespace {

constexpr size_t kPieces = 64;

int Descriptors() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

/// Pid 1 may take its time to collect a process that has ended.
bool Runs(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number;
  std::string name;
  std::string state;
  return stat >> number >> name >> state && state != "Z" && state != "X";
}

TEST(FakeCudaProcess, EndsWithItsLastClientAndLeavesNothing) {
  const Folder folder;
  const int before = Descriptors();
  int gpu = 0;
  {
    const Host host(folder.Config());
    gpu = fake_cuda_gpu_process();
    EXPECT_TRUE(Runs(gpu));
    EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
  }
  EXPECT_TRUE(Eventually([&] { return !Runs(gpu); }));
  EXPECT_EQ(Descriptors(), before);
}

TEST(FakeCudaProcess, HoldsNothingOfTheProgramThatStartedIt) {
  const Folder folder;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Host host(folder.Config());
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "the GPU's process has the pipe open";
  close(ends[0]);
}

TEST(FakeCudaProcess, ManyProcessesMeetInOneFolder) {
  const Folder folder;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(std::make_unique<Child>([&](const Wire& wire) {
      const Host host(folder.Config());
      wire.Send(fake_cuda_gpu_process());
      wire.Receive<char>();
    }));
  }
  const int gpu = children.front()->wire().Receive<int>();
  for (size_t i = 1; i < children.size(); ++i) EXPECT_EQ(children[i]->wire().Receive<int>(), gpu);
  for (const auto& child : children) child->wire().Send('x');
}

TEST(FakeCudaProcess, ComesAndGoesWithoutATraceAgainAndAgain) {
  const Folder folder;
  for (int i = 0; i < 20; ++i) {
    Host host(folder.Config());
    const CUdeviceptr memory = host.Alloc(100);
    host.Fill(memory, 1, 100);
    CU_OK(host.cuda->MemFree(memory));
  }
}

TEST(FakeCudaProcess, RunsStreamsByItselfWithPauses) {
  const Folder folder;
  Host host(folder.Config("delay_us=200,seed=7"));
  const CUdeviceptr memory = host.Alloc(20 * kPiece);
  host.Fill(memory, 1, 20 * kPiece);
  EXPECT_TRUE(host.Holds(memory, 1, 20 * kPiece));
  CU_OK(host.cuda->MemFree(memory));
}

TEST(FakeCudaProcess, AFullStreamMakesItsCallerWait) {
  const Folder folder;
  Host host(folder.Config());
  const CUdeviceptr memory = host.Alloc(100);
  const CUstream stream = host.Stream();
  fake_cuda_hold(0);
  std::thread releasing([] {
    Eventually([] { return fake_cuda_pieces() == 0; });
    fake_cuda_release(0);
  });
  for (int i = 0; i < 3000; ++i) CU_OK(host.cuda->MemsetD8Async(memory, 1, 100, stream));
  releasing.join();
  host.Finish(stream);
  CU_OK(host.cuda->MemFree(memory));
  CU_OK(host.cuda->StreamDestroy(stream));
}

TEST(FakeCudaProcess, AWildKernelCostsItsContextOnly) {
  const Folder folder;
  Child wild([&](const Wire&) {
    Host host(folder.Config());
    host.leaves_things = true;
    CUmodule module{};
    CU_OK(host.cuda->ModuleLoadDataEx(&module,
                                      ".version 7.0\n.target sm_80\n.entry fake_fill(.param .b8 p[24])\n{}\n",
                                      0, nullptr, nullptr));
    CUfunction function{};
    CU_OK(host.cuda->ModuleGetFunction(&function, module, "fake_fill"));
    uint64_t fill[3] = {kWindow + 0x0F00'0000, 100, 1};
    void* parameters[] = {fill};
    const CUevent event = host.Event();
    const CUstream stream = host.Stream();
    CU_OK(host.cuda->LaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
    host.cuda->EventRecord(event, stream);
    EXPECT_EQ(host.cuda->EventSynchronize(event), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  Host host(folder.Config());
  EXPECT_EQ(wild.Wait(), 0);
  const CUdeviceptr memory = host.Alloc(100);
  host.Fill(memory, 1, 100);
  EXPECT_TRUE(host.Holds(memory, 1, 100));
  CU_OK(host.cuda->MemFree(memory));
}

TEST(FakeCudaProcess, FaultsReachOtherProcesses) {
  const Folder folder;
  Child other([&](const Wire& wire) {
    Host host(folder.Config());
    wire.Send('x');
    wire.Receive<char>();
    CUdeviceptr memory = 0;
    EXPECT_EQ(host.cuda->MemAlloc(&memory, 100), CUDA_ERROR_OUT_OF_MEMORY);
    wire.Send('x');
    EXPECT_EQ(host.cuda->MemAlloc(&memory, 100), CUDA_SUCCESS);
    CU_OK(host.cuda->MemFree(memory));
  });
  Host host(folder.Config());
  other.wire().Receive<char>();
  fake_cuda_fail(other.pid(), "cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
  fake_cuda_block(other.pid(), "cuMemAlloc", 2, 60'000);
  other.wire().Send('x');
  other.wire().Receive<char>();
  EXPECT_TRUE(Eventually([&] { return fake_cuda_blocked(other.pid()) == 1; }));
  fake_cuda_unblock(other.pid());
  EXPECT_EQ(other.Wait(), 0);
}

// --- Deaths

/// A process that copies 64 pieces of 0x77 into memory that it shares, and then does nothing more. The copy
/// has not begun when it has said so.
void CopyAndWait(const std::string& config, const Wire& wire) {
  Host host(config);
  const CUdeviceptr range = host.Reserve(kPage);
  const auto handle = host.Create(kPage, kFd);
  CU_OK(host.cuda->MemMap(range, kPage, 0, handle, 0));
  CU_OK(host.Allow(range, kPage));
  int fd = -1;
  CU_OK(host.cuda->MemExportToShareableHandle(&fd, handle, kFd, 0));
  const CUdeviceptr source = host.Alloc(kPieces * kPiece);
  host.Fill(range, 0, kPage);
  host.Fill(source, 0x77, kPieces * kPiece);
  fake_cuda_hold(0);
  CU_OK(host.cuda->MemcpyAsync(range, source, kPieces * kPiece, host.Stream()));
  wire.Send('x', fd);
  wire.Receive<char>();
}

/// The shared memory, mapped by the survivor.
struct Shared {
  Shared(Host& owner, int fd) : host(owner), range(owner.Reserve(kPage)) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(host.cuda->MemImportFromShareableHandle(
                  &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), kFd),
              CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemMap(range, kPage, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(host.Allow(range, kPage), CUDA_SUCCESS);
    close(fd);
  }
  ~Shared() {
    EXPECT_EQ(host.cuda->MemUnmap(range, kPage), CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemAddressFree(range, kPage), CUDA_SUCCESS);
  }
  /// Pieces that have come.
  [[nodiscard]] long Come() const {
    const auto bytes = host.Read(range, kPieces * kPiece);
    return std::count(bytes.begin(), bytes.end(), 0x77) / static_cast<long>(kPiece);
  }
  Host& host;
  CUdeviceptr range;
};

/// Device 1 of the survivor, whose streams run while device 0 is held.
Host* UseSecondDevice(const std::string& config) {
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  auto* const host = new Host(config);
  unsetenv("CUDA_VISIBLE_DEVICES");
  return host;
}

TEST(FakeCudaDeath, CopiesOfAKilledProcessGoOn) {
  const Folder folder;
  const std::string config = folder.Config("after_death_ms=60000");
  Child copier([&](const Wire& wire) { CopyAndWait(config, wire); });
  const std::unique_ptr<Host> host(UseSecondDevice(config));
  int fd = -1;
  copier.wire().Receive<char>(&fd);
  {
    const Shared shared(*host, fd);
    copier.Kill();
    EXPECT_EQ(shared.Come(), 0);
    fake_cuda_release(-1);
    EXPECT_TRUE(Eventually([&] { return shared.Come() == kPieces; }));
    // Then all it had is given back; this process still has the shared memory.
    EXPECT_TRUE(Eventually([] { return fake_cuda_live(-1).processes == 1; }));
    EXPECT_EQ(fake_cuda_live(-1).memories, 1U);
  }
  EXPECT_EQ(fake_cuda_live(-1).memories, 0U);
}

TEST(FakeCudaDeath, OrAreCutInTheMiddle) {
  const Folder folder;
  const std::string config = folder.Config("after_death_ms=0,delay_us=2000");
  Child copier([&](const Wire& wire) { CopyAndWait(config, wire); });
  const std::unique_ptr<Host> host(UseSecondDevice(config));
  int fd = -1;
  copier.wire().Receive<char>(&fd);
  const Shared shared(*host, fd);
  const uint64_t before = fake_cuda_pieces();
  fake_cuda_release(-1);
  EXPECT_TRUE(Eventually([&] { return fake_cuda_pieces() > before + 3; }));
  copier.Kill();
  EXPECT_TRUE(Eventually([] { return fake_cuda_live(-1).processes == 1; }));
  fake_cuda_delay(0);
  const long come = shared.Come();
  EXPECT_GT(come, 0);
  EXPECT_LT(come, static_cast<long>(kPieces));
}

TEST(FakeCudaDeath, CopiesOfAStoppedProcessGoOn) {
  const Folder folder;
  Child copier([&](const Wire& wire) { CopyAndWait(folder.Config(), wire); });
  const std::unique_ptr<Host> host(UseSecondDevice(folder.Config()));
  int fd = -1;
  copier.wire().Receive<char>(&fd);
  const Shared shared(*host, fd);
  kill(copier.pid(), SIGSTOP);
  fake_cuda_release(-1);
  EXPECT_TRUE(Eventually([&] { return shared.Come() == kPieces; }));
  kill(copier.pid(), SIGCONT);
  copier.Kill();
}

TEST(FakeCudaDeath, AKilledProcessLeavesNothing) {
  const Folder folder;
  Child careless([&](const Wire& wire) {
    Host host(folder.Config());
    host.Alloc(5 * kMiB);
    host.Pinned(kMiB);
    host.Stream();
    host.cuda->MemMap(host.Reserve(kPage), kPage, 0, host.Create(kPage, kFd), 0);
    wire.Send('x');
    wire.Receive<char>();
  });
  const Host host(folder.Config());
  careless.wire().Receive<char>();
  EXPECT_EQ(fake_cuda_live(careless.pid()).memories, 3U);
  EXPECT_EQ(fake_cuda_live(careless.pid()).mappings, 3U);
  EXPECT_EQ(fake_cuda_live(careless.pid()).streams, 1U);
  careless.Kill();
  EXPECT_TRUE(Eventually([] { return fake_cuda_live(-1).processes == 1; }));
  EXPECT_EQ(fake_cuda_live(-1).memories, 0U);
  EXPECT_EQ(fake_cuda_live(-1).mappings, 0U);
  EXPECT_EQ(fake_cuda_live(-1).bytes, 0U);
}

}  // namespace
}  // namespace weightcast::fake_cuda
