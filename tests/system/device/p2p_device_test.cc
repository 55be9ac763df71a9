// Two engines of weightcast.p2p with device memory, on the fake driver.
#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "p2p/engine.h"
#include "system/device/endpoints.h"
#include "weightcast/device_buffer.h"

namespace weightcast::p2p {
namespace {

using ::testing::HasSubstr;
using transport::CurrentContext;
using transport::DevicesInUse;
using transport::FakeMachine;

constexpr size_t kP2pSize = size_t{3} << 20;
bool Never() { return false; }

/// An engine whose caller works in `stream`, of whatever device.
std::unique_ptr<Engine> MakeEngine(uint32_t rank, void* const* stream, const std::string& gpu = "auto") {
  EngineOptions options;
  options.rank = rank;
  options.gpu.index = static_cast<int32_t>(rank);
  options.token = "the-token-of-these-tests";
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"bind", "127.0.0.1"},
                                    {"lease", "2"},
                                    {"gpu", gpu},
                                    {"port_range", "20000-60000"}})
    transport::Require(options.settings.Set(name, value).ok(), name);
  options.stream_of = [stream](int device) {
    return Result<StreamRef>(StreamRef{.device = device, .stream = *stream});
  };
  auto engine = Engine::Create(std::move(options));
  transport::Require(engine.ok(), engine.status().message());
  return *std::move(engine);
}

class P2pDevice : public ::testing::Test {
 protected:
  P2pDevice() {
    const CurrentContext current(devices.cuda(), devices.context(source.memory().device));
    transport::Require(
        devices.cuda().StreamCreateWithPriority(&stream, drivers::CU_STREAM_NON_BLOCKING, 0) == 0, "stream");
    busy = stream;
    a = MakeEngine(0, &busy);
    b = MakeEngine(1, &idle);
    to_b = a->Shared(b->metadata(), Soon(), Never).value();
    to_a = b->Shared(a->metadata(), Soon(), Never).value();
  }
  ~P2pDevice() override {
    a.reset();
    b.reset();
    // What a test has left in it still uses the source.
    EXPECT_TRUE(WaitStream({.device = source.memory().device, .stream = stream}).ok());
    const CurrentContext current(devices.cuda(), devices.context(source.memory().device));
    EXPECT_EQ(devices.cuda().StreamDestroy(stream), 0);
  }

  static LocalSlice At(const Bytes& bytes, uint64_t memory = 0) {
    return {memory, bytes.memory().address, bytes.memory().length};
  }
  /// Leaves it in the stream of a's caller.
  void Fill(int value) const {
    const CurrentContext current(devices.cuda(), devices.context(source.memory().device));
    ASSERT_EQ(devices.cuda().MemsetD8Async(reinterpret_cast<drivers::CUdeviceptr>(source.memory().address),
                                           static_cast<unsigned char>(value), kP2pSize, stream),
              0);
  }
  static std::vector<std::byte> All(int value) { return {kP2pSize, static_cast<std::byte>(value)}; }

  FakeMachine machine;
  DevicesInUse devices{machine};
  Bytes source{devices, kP2pSize};
  Bytes target{devices, kP2pSize};
  drivers::CUstream stream{};
  void* busy = nullptr;
  void* idle = nullptr;
  std::unique_ptr<Engine> a;
  std::unique_ptr<Engine> b;
  uint64_t to_b = 0;
  uint64_t to_a = 0;
};

TEST_F(P2pDevice, SendsAndWritesBehindTheCallersStream) {
  target.Fill(1);
  const auto meta = b->Advertise(At(target));
  ASSERT_TRUE(meta.ok()) << meta.status().ToString();
  for (const bool one_sided : {false, true}) {
    fake_cuda_hold(source.memory().device);
    Fill(one_sided ? 8 : 7);
    const LocalSlice from = At(source);
    const LocalSlice to = At(target);
    const auto write = one_sided ? a->Write(to_b, {&from, 1}, {&*meta, 1}) : a->Send(to_b, {&from, 1});
    ASSERT_TRUE(write.ok()) << write.status().ToString();
    const auto receive =
        one_sided ? Result<uint64_t>(Status(Code::kInternal, "")) : b->Receive(to_a, {&to, 1});
    for (int i = 0; i < 50; ++i) ASSERT_FALSE(a->Poll(*write).has_value());
    fake_cuda_release(source.memory().device);
    EXPECT_TRUE(a->Wait(*write, Never).ok());
    if (!one_sided) {
      EXPECT_TRUE(b->Wait(*receive, Never).ok());
    }
    EXPECT_EQ(target.Read(), All(one_sided ? 8 : 7));
  }
}

TEST_F(P2pDevice, ReceivesAndReadsBehindTheCallersStream) {
  const auto sent = target.Fill(3);
  const auto meta = b->Advertise(At(target));
  ASSERT_TRUE(meta.ok()) << meta.status().ToString();
  for (const bool one_sided : {false, true}) {
    fake_cuda_hold(source.memory().device);
    Fill(9);
    const LocalSlice here = At(source);
    const LocalSlice there = At(target);
    const auto land = one_sided ? a->Read(to_b, {&here, 1}, {&*meta, 1}) : a->Receive(to_b, {&here, 1});
    ASSERT_TRUE(land.ok()) << land.status().ToString();
    const auto send = one_sided ? Result<uint64_t>(Status(Code::kInternal, "")) : b->Send(to_a, {&there, 1});
    for (int i = 0; i < 50; ++i) ASSERT_FALSE(a->Poll(*land).has_value());
    fake_cuda_release(source.memory().device);
    EXPECT_TRUE(a->Wait(*land, Never).ok());
    if (!one_sided) {
      EXPECT_TRUE(b->Wait(*send, Never).ok());
    }
    EXPECT_EQ(source.Read(), sent);
  }
}

TEST_F(P2pDevice, ACancelledOrDroppedOperationLeavesNothingBehind) {
  const auto memory = a->Register({source.memory().address, kP2pSize});
  ASSERT_TRUE(memory.ok());
  fake_cuda_hold(source.memory().device);
  Fill(9);
  const LocalSlice from = At(source, *memory);
  const auto send = a->Send(to_b, {&from, 1});
  ASSERT_TRUE(send.ok());
  ASSERT_TRUE(a->Send(to_b, {&from, 1}).ok());  // Nobody asks for its end.
  EXPECT_EQ(a->Wait(*send, [] { return true; }).code(), Code::kCancelled);
  EXPECT_EQ(a->Send(99, {&from, 1}).status().code(), Code::kInvalidArgument);
  a.reset();
  fake_cuda_release(source.memory().device);
}

TEST_F(P2pDevice, KnowsMemoryByItsAddress) {
  std::vector<std::byte> host(kP2pSize);
  const auto sent = source.Fill(4);
  const LocalSlice from = At(source);
  const LocalSlice to{0, host.data(), host.size()};
  const auto send = a->Send(to_b, {&from, 1});
  const auto receive = b->Receive(to_a, {&to, 1});
  ASSERT_TRUE(send.ok() && receive.ok());
  EXPECT_TRUE(b->Wait(*receive, Never).ok());
  EXPECT_TRUE(a->Wait(*send, Never).ok());
  EXPECT_EQ(host, sent);
  EXPECT_THAT(a->Register({source.memory().address, kP2pSize + (size_t{1} << 22)}).status().message(),
              HasSubstr("beyond the end of their allocation"));
  const auto off = MakeEngine(2, &idle, "off");
  EXPECT_FALSE(off->Register({source.memory().address, kP2pSize}).ok());
  EXPECT_TRUE(off->Register(host).ok());
}

}  // namespace
}  // namespace weightcast::p2p
