// Two endpoints with device memory, over shm on the fake driver.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "contract/devices.h"
#include "fake_cuda/fake_cuda.h"
#include "weightcast/endpoint.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;
using transport::CurrentContext;
using transport::DevicesInUse;
using transport::FakeMachine;
using transport::kPatience;
using transport::Require;

constexpr size_t kSize = size_t{3} << 20;

TimePoint Soon() { return Clock::now() + kPatience; }

/// An endpoint of this process.
class Side {
 public:
  explicit Side(const std::string& role, const std::map<std::string, std::string>& settings = {}) {
    EndpointOptions options;
    options.self = {"test", role, role == "inference" ? "rollout" : "", 0, 0};
    options.token = "secret";
    Require(options.settings.Set("bind", "127.0.0.1").ok(), "bind");
    for (const auto& [name, value] : settings) Require(options.settings.Set(name, value).ok(), name);
    auto made = Endpoint::Create(std::move(options));
    Require(made.ok(), made.status().message());
    endpoint_ = std::move(made).value();
  }
  Endpoint* operator->() const { return endpoint_.get(); }
  Connection To(const Side& other) const {
    auto made = endpoint_->Connect(other->Addresses(), other->self(), Soon());
    Require(made.ok(), made.status().message());
    return *made;
  }
  Connection Known(const Side& other) const {
    while (true) {
      if (auto found = endpoint_->Find(other->self().incarnation)) return *found;
      std::this_thread::yield();
    }
  }

 private:
  std::unique_ptr<Endpoint> endpoint_;
};

/// Device memory of a test, registered by nobody yet.
class Bytes {
 public:
  Bytes(DevicesInUse& devices, size_t size) : devices_(devices), memory_(devices.Allocate(size, true)) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { devices_.Free(memory_); }
  [[nodiscard]] const Memory& memory() const { return memory_; }
  std::vector<std::byte> Fill(int seed) const {
    std::vector<std::byte> bytes(memory_.length);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<size_t>(seed));
    devices_.Write(memory_, 0, bytes);
    return bytes;
  }
  [[nodiscard]] std::vector<std::byte> Read() const {
    std::vector<std::byte> bytes(memory_.length);
    devices_.Read(memory_, 0, bytes);
    return bytes;
  }

 private:
  DevicesInUse& devices_;
  const Memory memory_;
};

class EndpointDevice : public ::testing::Test {
 protected:
  static Region Register(const Side& side, const Memory& memory, Access access) {
    auto region = side->Register(memory, access);
    Require(region.ok(), region.status().message());
    return std::move(region).value();
  }
  static RemoteRegion Import(Connection& connection, const Region& region) {
    auto remote = connection.Import(region.Descriptor());
    Require(remote.ok(), remote.status().message());
    return *remote;
  }
  static Piece Whole(const Region& local, const RemoteRegion& remote) {
    return {local.Whole(), remote.Whole()};
  }

  FakeMachine machine;
  DevicesInUse devices{machine};
  Bytes source{devices, kSize};
  Bytes target{devices, kSize};
};

TEST_F(EndpointDevice, IsWrittenUnderAGrantAndNotAfterItsEnd) {
  const auto sent = source.Fill(1);
  target.Fill(2);
  const Side a("trainer");
  const Side b("inference");
  Connection to_b = a.To(b);
  Connection to_a = b.Known(a);
  const Region local = Register(a, source.memory(), Access::kLocal);
  const Region there = Register(b, target.memory(), Access::kGranted);
  const Piece piece = Whole(local, Import(to_b, there));
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
  std::vector<std::byte> host(kSize);
  const Region local = Register(a, target.memory(), Access::kLocal);
  const Region host_local = Register(a, HostMemory(host), Access::kLocal);
  const Region there = Register(b, source.memory(), Access::kReadWrite);
  const RemoteRegion remote = Import(to_b, there);
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
  const Region local = Register(a, source.memory(), Access::kLocal);
  const Region there = Register(b, target.memory(), Access::kReadWrite);
  const Piece piece = Whole(local, Import(to_b, there));
  const int device = source.memory().device;
  drivers::CUstream stream{};
  {
    const CurrentContext current(devices.cuda(), devices.context(device));
    ASSERT_EQ(devices.cuda().StreamCreateWithPriority(&stream, drivers::CU_STREAM_NON_BLOCKING, 0), 0);
    fake_cuda_hold(device);
    ASSERT_EQ(devices.cuda().MemsetD8Async(reinterpret_cast<drivers::CUdeviceptr>(source.memory().address),
                                           77, kSize, stream),
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
  EXPECT_EQ(target.Read(), std::vector(kSize, std::byte{77}));
  const CurrentContext current(devices.cuda(), devices.context(device));
  EXPECT_EQ(devices.cuda().StreamDestroy(stream), 0);
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
  const Region local = Register(a, source.memory(), Access::kReadWrite);
  std::vector<std::byte> host(kSize);
  const Region there = Register(b, HostMemory(host), Access::kReadWrite);
  const Piece out = Whole(local, Import(to_b, there));
  auto written = to_b.Write({&out, 1}, {});
  ASSERT_TRUE(written.ok()) << written.status().message();
  ASSERT_TRUE(written->Wait(In(20)).ok());
  EXPECT_EQ(host, source.Read());
  std::ranges::fill(host, std::byte{0});
  const Piece in = Whole(there, Import(to_a, local));
  auto read = to_a.Read({&in, 1}, {});
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_TRUE(read->Wait(In(20)).ok());
  EXPECT_EQ(host, source.Read());
}

TEST_F(EndpointDevice, SharesARegistrationOfTheSameAccess) {
  const Side a("trainer");
  const Region first = Register(a, source.memory(), Access::kLocal);
  const Region again = Register(a, source.memory(), Access::kLocal);
  EXPECT_EQ(first.Descriptor(), again.Descriptor());
  const Region open = Register(a, source.memory(), Access::kReadWrite);
  EXPECT_NE(first.Descriptor(), open.Descriptor());
}

}  // namespace
}  // namespace weightcast
