#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "fake_cuda/host.h"

namespace weightcast::fake_cuda {
namespace {

/// A copy from device memory that is all 1 into pinned memory that is all 0.
struct Copying {
  Copying(Host& owner, size_t pieces) : host(owner), length(pieces * kPiece) {
    source = host.Alloc(length);
    host.Fill(source, 1, length);
    target = host.Pinned(length);
    std::memset(target, 0, length);
  }
  ~Copying() {
    EXPECT_EQ(host.cuda->MemFree(source), CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemFreeHost(target), CUDA_SUCCESS);
  }
  /// Which pieces have come: "1" or "0" for each; "?" for one that has come in part.
  [[nodiscard]] std::string Come() const {
    std::string come;
    for (size_t at = 0; at < length; at += kPiece) {
      const auto ones = std::count(target + at, target + at + kPiece, std::byte{1});
      come += ones == 0 ? '0' : ones == kPiece ? '1' : '?';
    }
    return come;
  }
  void Begin(CUstream stream) const {
    EXPECT_EQ(host.cuda->MemcpyAsync(Number(target), source, length, stream), CUDA_SUCCESS);
  }

  Host& host;
  size_t length;
  CUdeviceptr source = 0;
  std::byte* target = nullptr;
};

TEST(FakeCudaStream, ACopyComesInPieces) {
  Host host;
  const CUstream stream = host.Stream();
  {
    Copying copy(host, 5);
    copy.Begin(stream);
    for (long come = 0; come <= 5; ++come) {
      const std::string pieces = copy.Come();
      EXPECT_EQ(std::count(pieces.begin(), pieces.end(), '1'), come) << pieces;
      EXPECT_EQ(pieces.find('?'), std::string::npos);
      EXPECT_EQ(fake_cuda_step(0), come < 5 ? 1 : 0);
    }
  }
  CU_OK(host.cuda->StreamDestroy(stream));
}

TEST(FakeCudaStream, ItsPiecesComeInNoFixedOrder) {
  Host host;
  const CUstream stream = host.Stream();
  std::set<std::string> firsts;
  for (size_t at = 0; at < 8; ++at) {
    Copying copy(host, 4 + at);
    copy.Begin(stream);
    fake_cuda_step(0);
    firsts.insert(std::to_string(copy.Come().find('1')));
    while (fake_cuda_step(0) != 0) {
    }
    EXPECT_EQ(copy.Come(), std::string(4 + at, '1'));
  }
  EXPECT_GT(firsts.size(), 1U) << "always the same piece is the first";
  CU_OK(host.cuda->StreamDestroy(stream));
}

TEST(FakeCudaStream, RunsInOrder) {
  Host host;
  const CUstream stream = host.Stream();
  const CUdeviceptr memory = host.Alloc(3 * kPiece);
  for (unsigned char value = 1; value <= 20; ++value) {
    CU_OK(host.cuda->MemsetD8Async(memory, value, 3 * kPiece, stream));
  }
  host.Finish(stream);
  EXPECT_TRUE(host.Holds(memory, 20, 3 * kPiece));
  CU_OK(host.cuda->MemFree(memory));
  CU_OK(host.cuda->StreamDestroy(stream));
}

/// In which order two streams of two pieces each run by this seed, as "0110".
std::string OrderOfStreams(Host& host, uint64_t seed) {
  const CUstream streams[] = {host.Stream(), host.Stream()};
  std::string order;
  {
    Copying copies[] = {Copying(host, 2), Copying(host, 2)};
    for (int i = 0; i < 2; ++i) copies[i].Begin(streams[i]);
    fake_cuda_seed(seed);
    std::string before = copies[0].Come();
    while (fake_cuda_step(0) != 0) {
      order += copies[0].Come() == before ? '1' : '0';
      before = copies[0].Come();
    }
  }
  for (const CUstream stream : streams) host.cuda->StreamDestroy(stream);
  return order;
}

TEST(FakeCudaStream, TwoStreamsRunInAnyOrderWhichTheSeedDecides) {
  Host host;
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    orders.insert(OrderOfStreams(host, seed));
    EXPECT_EQ(OrderOfStreams(host, seed), OrderOfStreams(host, seed)) << "seed " << seed;
  }
  EXPECT_EQ(orders.size(), 6U) << "some of the six orders never came";
}

TEST(FakeCudaStream, ABatchRunsInAnyOrderAndEndsAsAWhole) {
  Host host;
  const CUstream stream = host.Stream();
  auto* const word = reinterpret_cast<uint64_t*>(host.Pinned(8));
  *word = 0;
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    Copying copies[] = {Copying(host, 1), Copying(host, 1), Copying(host, 1)};
    CUdeviceptr to[3];
    CUdeviceptr from[3];
    size_t lengths[3];
    for (int i = 0; i < 3; ++i) {
      to[i] = Number(copies[i].target);
      from[i] = copies[i].source;
      lengths[i] = kPiece;
    }
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first = 0;
    fake_cuda_seed(seed);
    CU_OK(host.cuda->MemcpyBatchAsync(to, from, lengths, 3, &attributes, &first, 1, stream));
    CU_OK(host.cuda->StreamWriteValue64(stream, Number(word), seed, 0));
    std::string order;
    while (fake_cuda_step(0) != 0) {
      for (char i = '0'; i < '3'; ++i) {
        if (copies[i - '0'].Come() == "1" && order.find(i) == std::string::npos) order += i;
      }
      EXPECT_TRUE(*word != seed || order.size() == 3) << "the word came before the copies";
    }
    EXPECT_EQ(*word, seed);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6U);
  CU_OK(host.cuda->MemFreeHost(word));
  CU_OK(host.cuda->StreamDestroy(stream));
}

TEST(FakeCudaStream, ADriverBefore128HasNoBatches) {
  for (const char* const driver : {"driver=12000", "driver=12080", "driver=13000"}) {
    Host host(driver);
    const CUstream stream = host.Stream();
    const CUdeviceptr memory = host.Alloc(2 * kPiece);
    host.Fill(memory, 3, kPiece);
    const CUdeviceptr to = memory + kPiece;
    const size_t length = kPiece;
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    size_t first = 0;
    const CUresult result =
        host.cuda->MemcpyBatchAsync(&to, &memory, &length, 1, &attributes, &first, 1, stream);
    EXPECT_EQ(result, driver == std::string("driver=12000") ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS);
    host.Finish(stream);
    EXPECT_TRUE(result != CUDA_SUCCESS || host.Holds(to, 3, kPiece));
    CU_OK(host.cuda->MemFree(memory));
    CU_OK(host.cuda->StreamDestroy(stream));
  }
}

TEST(FakeCudaStream, WritesNoValuesWhereTheDeviceCannot) {
  Host host("writes=0");
  const CUstream stream = host.Stream();
  int can = 1;
  CU_OK(host.cuda->DeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
  EXPECT_EQ(can, 0);
  std::byte* const word = host.Pinned(8);
  EXPECT_EQ(host.cuda->StreamWriteValue64(stream, Number(word), 1, 0), CUDA_ERROR_NOT_SUPPORTED);
  CU_OK(host.cuda->MemFreeHost(word));
  CU_OK(host.cuda->StreamDestroy(stream));
}

TEST(FakeCudaStream, EventsAreOverWhenWhatStandsBeforeThemIs) {
  Host host;
  const CUstream stream = host.Stream();
  const CUevent event = host.Event();
  CU_OK(host.cuda->EventQuery(event));  // Never recorded.
  {
    Copying copy(host, 2);
    copy.Begin(stream);
    CU_OK(host.cuda->EventRecord(event, stream));
    EXPECT_EQ(host.cuda->EventQuery(event), CUDA_ERROR_NOT_READY);
    fake_cuda_step(0);
    fake_cuda_step(0);
    EXPECT_EQ(host.cuda->EventQuery(event), CUDA_ERROR_NOT_READY);
    fake_cuda_step(0);
    CU_OK(host.cuda->EventQuery(event));
    // Recorded again, it is that record which counts.
    copy.Begin(stream);
    CU_OK(host.cuda->EventRecord(event, stream));
    EXPECT_EQ(host.cuda->EventQuery(event), CUDA_ERROR_NOT_READY);
    CU_OK(host.cuda->EventSynchronize(event));
    CU_OK(host.cuda->EventQuery(event));
  }
  CU_OK(host.cuda->EventDestroy(event));
  CU_OK(host.cuda->StreamDestroy(stream));
}

TEST(FakeCudaStream, OneStreamWaitsForAnothersEvent) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Host host;
    const CUstream first = host.Stream();
    const CUstream second = host.Stream();
    const CUevent event = host.Event();
    {
      Copying early(host, 3);
      Copying late(host, 1);
      early.Begin(first);
      CU_OK(host.cuda->EventRecord(event, first));
      CU_OK(host.cuda->StreamWaitEvent(second, event, 0));
      late.Begin(second);
      while (fake_cuda_step(seed) != 0) EXPECT_TRUE(late.Come() == "0" || early.Come() == "111");
      EXPECT_EQ(late.Come(), "1");
    }
    CU_OK(host.cuda->EventDestroy(event));
    CU_OK(host.cuda->StreamDestroy(first));
    CU_OK(host.cuda->StreamDestroy(second));
  }
}

TEST(FakeCudaStream, ADestroyedStreamRunsToItsEnd) {
  Host host;
  const CUstream stream = host.Stream();
  Copying copy(host, 3);
  copy.Begin(stream);
  CU_OK(host.cuda->StreamDestroy(stream));
  while (fake_cuda_step(0) != 0) {
  }
  EXPECT_EQ(copy.Come(), "111");
  EXPECT_EQ(fake_cuda_live(0).streams, 0U);
}

TEST(FakeCudaStream, TheDefaultStreamIsOneOfTheContext) {
  Host host;
  const CUdeviceptr memory = host.Alloc(100);
  CU_OK(host.cuda->MemsetD8Async(memory, 5, 100, nullptr));
  host.Finish(nullptr);
  EXPECT_TRUE(host.Holds(memory, 5, 100));
  CU_OK(host.cuda->MemFree(memory));
}

TEST(FakeCudaStream, TakesAThousandOperationsAndMore) {
  Host host;
  const CUstream stream = host.Stream();
  const CUdeviceptr memory = host.Alloc(100);
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 1000; ++i) CU_OK(host.cuda->MemsetD8Async(memory, 1, 100, stream));
    host.Finish(stream);
  }
  EXPECT_EQ(fake_cuda_calls("cuMemsetD8Async"), 5000U);
  CU_OK(host.cuda->MemFree(memory));
  CU_OK(host.cuda->StreamDestroy(stream));
}

// --- Kernels

constexpr const char* kPtx = R"(.version 7.8
.target sm_90
.address_size 64
.visible .entry fake_fill(.param .align 8 .b8 fake_fill_param_0[24])
{ ret; }
.visible .entry of_nobody(.param .u64 a, .param .u32 b)
{ ret; }
)";

struct FillParameters {
  uint64_t address;
  uint64_t length;
  uint64_t value;
};

TEST(FakeCudaKernel, RunsTheHostVersionOfWhatThePtxNames) {
  Host host;
  CUmodule module{};
  CUfunction function{};
  CU_OK(host.cuda->ModuleLoadDataEx(&module, kPtx, 0, nullptr, nullptr));
  EXPECT_EQ(host.cuda->ModuleGetFunction(&function, module, "fill"), CUDA_ERROR_NOT_FOUND);
  CU_OK(host.cuda->ModuleGetFunction(&function, module, "fake_fill"));
  const CUstream stream = host.Stream();
  const CUdeviceptr memory = host.Alloc(10'000);
  for (uint64_t value = 1; value <= 100; ++value) {
    FillParameters fill{memory, 10'000, value};
    void* parameters[] = {&fill};
    CU_OK(host.cuda->LaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
    fill.value = 0;  // The launch has copied it.
    if (value % 20 == 0) host.Finish(stream);
  }
  EXPECT_TRUE(host.Holds(memory, 100, 10'000));
  CU_OK(host.cuda->ModuleUnload(module));
  CU_OK(host.cuda->MemFree(memory));
  CU_OK(host.cuda->StreamDestroy(stream));
}

TEST(FakeCudaKernel, RefusesWhatADriverRefuses) {
  CUmodule module{};
  {
    Host host("driver=12000");
    CU_OK(host.cuda->ModuleLoadDataEx(&module, kPtx, 0, nullptr, nullptr));
    CU_OK(host.cuda->ModuleUnload(module));
    EXPECT_EQ(host.cuda->ModuleLoadDataEx(&module, ".version 9.0\n.target sm_90\n", 0, nullptr, nullptr),
              CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    EXPECT_EQ(host.cuda->ModuleLoadDataEx(&module, "no PTX", 0, nullptr, nullptr), CUDA_ERROR_INVALID_IMAGE);
  }
  Host host("cc=80");
  EXPECT_EQ(host.cuda->ModuleLoadDataEx(&module, kPtx, 0, nullptr, nullptr), CUDA_ERROR_INVALID_PTX);
}

}  // namespace
}  // namespace weightcast::fake_cuda
