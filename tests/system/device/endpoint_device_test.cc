// Two endpoints with device memory, over shm on the fake driver.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "system/device/endpoints.h"
#include "trace/metrics.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;
using transport::CurrentContext;
using transport::DevicesInUse;
using transport::FakeMachine;

constexpr size_t kEndpointSize = size_t{3} << 20;

class EndpointDevice : public ::testing::Test {
 protected:
  FakeMachine machine;
  DevicesInUse devices{machine};
  Bytes source{devices, kEndpointSize};
  Bytes target{devices, kEndpointSize};
};

TEST_F(EndpointDevice, IsWrittenUnderAGrantAndNotAfterItsEnd) {
  const auto sent = source.Fill(1);
  target.Fill(2);
  const Side a("trainer");
  const Side b("inference");
  Connection to_b = a.To(b);
  Connection to_a = b.Known(a);
  const Region local = RegisterAt(a, source.memory(), Access::kLocal);
  const Region there = RegisterAt(b, target.memory(), Access::kGranted);
  const Piece piece = Whole(local, ImportInto(to_b, there));
  const auto grant = to_a.OpenGrant({.transfers = 1});
  ASSERT_TRUE(grant.ok());
  ASSERT_TRUE(to_b.Write({&piece, 1}, {.grant = *grant, .signal = 0})->Wait().ok());
  ASSERT_TRUE(to_a.WaitGrant(*grant, 1, Soon()).ok());
  EXPECT_EQ(target.Read(), sent);
  std::atomic<bool> fenced{false};
  to_a.RevokeGrant(*grant, [&] { fenced = true; });
  while (!fenced) std::this_thread::yield();
  source.Fill(3);
  EXPECT_EQ(to_b.Write({&piece, 1}, {.grant = *grant, .signal = 0})->Wait().code(), Code::kFenced);
  EXPECT_EQ(target.Read(), sent);
}

TEST_F(EndpointDevice, IsReadAndMeetsHostMemory) {
  const auto sent = source.Fill(4);
  const Side a("trainer");
  const Side b("inference");
  Connection to_b = a.To(b);
  std::vector<std::byte> host(kEndpointSize);
  const Region local = RegisterAt(a, target.memory(), Access::kLocal);
  const Region host_local = RegisterAt(a, HostMemory(host), Access::kLocal);
  const Region there = RegisterAt(b, source.memory(), Access::kReadWrite);
  const RemoteRegion remote = ImportInto(to_b, there);
  const Piece piece = Whole(local, remote);
  ASSERT_TRUE(to_b.Read({&piece, 1}, {})->Wait().ok());
  EXPECT_EQ(target.Read(), sent);
  const Piece to_host = Whole(host_local, remote);
  ASSERT_TRUE(to_b.Read({&to_host, 1}, {})->Wait().ok());
  EXPECT_EQ(host, sent);
  std::ranges::fill(host, std::byte{9});
  ASSERT_TRUE(to_b.Write({&to_host, 1}, {})->Wait().ok());
  EXPECT_EQ(source.Read(), host);
}

/// A slow device: its stream has work that is held when the write is asked for.
TEST_F(EndpointDevice, WaitsForTheStreamBeforeItReads) {
  source.Fill(5);
  target.Fill(6);
  const Side a("trainer");
  const Side b("inference");
  Connection to_b = a.To(b);
  const Region local = RegisterAt(a, source.memory(), Access::kLocal);
  const Region there = RegisterAt(b, target.memory(), Access::kReadWrite);
  const Piece piece = Whole(local, ImportInto(to_b, there));
  const int device = source.memory().device;
  drivers::CUstream stream{};
  {
    const CurrentContext current(devices.cuda(), devices.context(device));
    ASSERT_EQ(devices.cuda().StreamCreateWithPriority(&stream, drivers::CU_STREAM_NON_BLOCKING, 0), 0);
    fake_cuda_hold(device);
    ASSERT_EQ(devices.cuda().MemsetD8Async(reinterpret_cast<drivers::CUdeviceptr>(source.memory().address),
                                           77, kEndpointSize, stream),
              0);
  }
  const auto event = a->Record({.device = device, .stream = stream});
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  EXPECT_FALSE((*event)->Done());
  auto write = to_b.Write({&piece, 1}, {.after = *event});
  ASSERT_TRUE(write.ok());
  EXPECT_EQ(write->Wait(Clock::now() + std::chrono::milliseconds(50)).code(), Code::kTimedOut);
  fake_cuda_release(device);
  ASSERT_TRUE(write->Wait().ok());
  EXPECT_EQ(target.Read(), std::vector(kEndpointSize, std::byte{77}));
  const CurrentContext current(devices.cuda(), devices.context(device));
  EXPECT_EQ(devices.cuda().StreamDestroy(stream), 0);
}

/// Its event would never be over.
class EndpointDeviceLost : public EndpointDevice, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, EndpointDeviceLost, ::testing::Values("shm", "tcp"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(EndpointDeviceLost, AWriteBehindItsStreamEndsWithTheLink) {
  devices.ExpectLeftovers();
  const Side a("trainer", {{"transport", GetParam()}});
  const Side b("inference", {{"transport", GetParam()}});
  Connection to_b = a.To(b);
  const int device = source.memory().device;
  std::vector<std::byte> host(kEndpointSize);
  const Region local = RegisterAt(a, source.memory(), Access::kLocal);
  const Region there = RegisterAt(b, HostMemory(host), Access::kReadWrite);
  const Piece piece = Whole(local, ImportInto(to_b, there));
  {
    const CurrentContext current(devices.cuda(), devices.context(device));
    fake_cuda_hold(device);
    const auto address = reinterpret_cast<drivers::CUdeviceptr>(source.memory().address);
    ASSERT_EQ(devices.cuda().MemsetD8Async(address, 7, kEndpointSize, nullptr), drivers::CUDA_SUCCESS);
  }
  const auto event = a->Record({.device = device});
  ASSERT_TRUE(event.ok()) << event.status().ToString();
  auto write = to_b.Write({&piece, 1}, {.after = *event, .deadline = kNever});
  ASSERT_TRUE(write.ok());
  fake_cuda_lose(0, device, drivers::CUDA_ERROR_ECC_UNCORRECTABLE, 0);
  EXPECT_FALSE(write->Wait(Soon()).ok());  // Of the two ends, either may be the first to say why.
  EXPECT_TRUE(write->ended());
  fake_cuda_release(device);
}

TEST_F(EndpointDevice, SaysWhatIsWrong) {
  const Side a("trainer");
  Memory other = source.memory();
  other.device = 1 - other.device;
  EXPECT_EQ(a->Register(other, Access::kLocal).status().code(), Code::kInvalidArgument);
  std::vector<std::byte> host(100);
  Memory lie = HostMemory(host);
  lie.kind = MemoryKind::kDevice;
  lie.device = 0;
  EXPECT_THAT(a->Register(lie, Access::kLocal).status().message(), HasSubstr("the driver knows"));
  lie.device = -1;
  EXPECT_EQ(a->Register(lie, Access::kLocal).status().code(), Code::kInvalidArgument);
  const Side off("trainer", {{"gpu", "off"}});
  EXPECT_EQ(off->Register(source.memory(), Access::kLocal).status().code(), Code::kUnavailable);
}

TEST_F(EndpointDevice, MovesOverTcpToo) {
  const Side a("trainer");
  const Side b("inference", {{"transport", "tcp"}});
  Connection to_b = a.To(b);
  Connection to_a = b.Known(a);
  ASSERT_EQ(to_b.transport_name(), "tcp");
  source.Fill(7);
  const Region local = RegisterAt(a, source.memory(), Access::kReadWrite);
  std::vector<std::byte> host(kEndpointSize);
  const Region there = RegisterAt(b, HostMemory(host), Access::kReadWrite);
  const Piece out = Whole(local, ImportInto(to_b, there));
  auto written = to_b.Write({&out, 1}, {});
  ASSERT_TRUE(written.ok()) << written.status().message();
  ASSERT_TRUE(written->Wait(In(20)).ok());
  EXPECT_EQ(host, source.Read());
  std::ranges::fill(host, std::byte{0});
  const Piece in = Whole(there, ImportInto(to_a, local));
  auto read = to_a.Read({&in, 1}, {});
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_TRUE(read->Wait(In(20)).ok());
  EXPECT_EQ(host, source.Read());
}

/// Open memory of device 1, written from device 0: pushed. Where the way between them lies, it is staged.
TEST_F(EndpointDevice, OpenMemoryOfAnotherDeviceIsReachedOnlyWhereTheTrialHasPassed) {
  const auto staged = [] { return trace::CounterNamed("gpu.staged_bytes").value(); };
  ASSERT_NE(source.memory().device, target.memory().device);
  for (const bool lies : {false, true}) {
    fake_cuda_peer(source.memory().device, target.memory().device, lies ? 2 : 1);
    const Side a("trainer", {{"transport", "shm"}});
    const Side b("inference", {{"transport", "shm"}});
    Connection to_b = a.To(b);
    const Region local = RegisterAt(a, source.memory(), Access::kLocal);
    const Region there = RegisterAt(b, target.memory(), Access::kReadWrite);
    const Piece piece = Whole(local, ImportInto(to_b, there));
    const uint64_t before = staged();
    for (int seed = 10; seed < 13; ++seed) {
      const auto sent = source.Fill(seed);
      ASSERT_TRUE(to_b.Write({&piece, 1}, {})->Wait(Soon()).ok());
      ASSERT_EQ(target.Read(), sent);
    }
    EXPECT_EQ(staged() - before, lies ? 3 * kEndpointSize : 0);
  }
}

TEST_F(EndpointDevice, SharesARegistrationOfTheSameAccess) {
  const Side a("trainer");
  const Region first = RegisterAt(a, source.memory(), Access::kLocal);
  const Region again = RegisterAt(a, source.memory(), Access::kLocal);
  EXPECT_EQ(first.Descriptor(), again.Descriptor());
  const Region open = RegisterAt(a, source.memory(), Access::kReadWrite);
  EXPECT_NE(first.Descriptor(), open.Descriptor());
}

}  // namespace
}  // namespace weightcast
