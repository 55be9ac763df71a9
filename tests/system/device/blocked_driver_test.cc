// A driver call that blocks for longer than the lease declares nobody dead: two endpoints on the fake driver.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "system/device/endpoints.h"

namespace weightcast {
namespace {

using transport::DevicesInUse;
using transport::FakeMachine;
using transport::Require;

constexpr size_t kBlockedSize = size_t{3} << 20;
constexpr int kBlockMs = 3000;  // Three leases.

std::map<std::string, std::string> SettingsFor(const std::string& transport) {
  return {{"lease", "1"}, {"transport", transport}};
}

void AwaitBlock() {
  const TimePoint limit = Soon();
  while (fake_cuda_blocked(0) == 0) {
    Require(Clock::now() < limit, "no call blocks");
    std::this_thread::yield();
  }
}

class BlockedDriver : public ::testing::TestWithParam<const char*> {
 protected:
  BlockedDriver() {
    WriteOnce();  // The ways are tried, and everything is mapped.
    sent = source.Fill(1);
  }
  Transfer Write() {
    const Piece piece = Whole(local, remote);
    auto write = to_b.Write({&piece, 1}, {});
    Require(write.ok(), write.status().message());
    return *write;
  }
  void WriteOnce() {
    const Status done = Write().Wait(Soon());
    Require(done.ok(), done.message());
  }
  /// Host memory goes over the same connection until the driver's call returns; `write` does not end before.
  void GoOnBeside(const Transfer& write) {
    const Piece piece = Whole(host_local, host_remote);
    int done = 0;
    for (bool blocked = true; blocked; ++done) {
      const bool ended = write.ended();
      blocked = fake_cuda_blocked(0) > 0;
      EXPECT_FALSE(blocked && ended) << "the driver's call did not block";
      ASSERT_TRUE(to_b.Write({&piece, 1}, {})->Wait(Soon()).ok());
    }
    EXPECT_GT(done, 1) << "nothing went on while the call blocked";
  }
  void ExpectAllWell(Transfer& write) {
    const Status done = write.Wait(Soon());
    EXPECT_TRUE(done.ok()) << done.ToString();
    EXPECT_TRUE(to_b.status().ok()) << to_b.status().ToString();
    EXPECT_TRUE(to_a.status().ok()) << to_a.status().ToString();
    EXPECT_EQ(a.To(b), to_b) << "it is another connection";
    EXPECT_EQ(target.Read(), sent);
    EXPECT_EQ(host_target, host_source);
  }

  FakeMachine machine;
  DevicesInUse devices{machine};
  Bytes source{devices, kBlockedSize};
  Bytes target{devices, kBlockedSize};
  std::vector<std::byte> host_source = std::vector<std::byte>(4096, std::byte{7});
  std::vector<std::byte> host_target = std::vector<std::byte>(4096);
  std::vector<std::byte> sent;
  const Side a{"trainer", SettingsFor(GetParam())};
  const Side b{"inference", SettingsFor(GetParam())};
  Connection to_b = a.To(b);
  Connection to_a = b.Known(a);
  const Region local = RegisterAt(a, source.memory(), Access::kLocal);
  const Region there = RegisterAt(b, target.memory(), Access::kReadWrite);
  const RemoteRegion remote = ImportInto(to_b, there);
  const Region host_local = RegisterAt(a, HostMemory(host_source), Access::kLocal);
  const Region host_there = RegisterAt(b, HostMemory(host_target), Access::kReadWrite);
  const RemoteRegion host_remote = ImportInto(to_b, host_there);
};

TEST_P(BlockedDriver, AnAllocationOfTheUsersDeclaresNobodyDead) {
  fake_cuda_block(0, "cuMemAlloc", 1, kBlockMs);
  std::thread user([&] { const Bytes more(devices, kBlockedSize); });
  AwaitBlock();
  Transfer write = Write();
  GoOnBeside(write);
  user.join();
  ExpectAllWell(write);
}

TEST_P(BlockedDriver, ACallThatBeginsACopyDeclaresNobodyDead) {
  fake_cuda_block(0, "cuMemcpyAsync", 1, kBlockMs);
  Transfer write = Write();
  AwaitBlock();
  GoOnBeside(write);
  ExpectAllWell(write);
}

INSTANTIATE_TEST_SUITE_P(Transports, BlockedDriver, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace weightcast
