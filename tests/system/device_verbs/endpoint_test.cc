// Which transport endpoints with device memory take between hosts with NICs.
#include <gmock/gmock.h>

#include "fake_cuda/fake_cuda.h"
#include "system/device/endpoints.h"
#include "system/device_verbs/nics.h"
#include "trace/metrics.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;
using transport::DevicesInUse;
using transport::FakeMachine;

constexpr size_t kEndpointSize = size_t{3} << 20;

class EndpointVerbs : public ::testing::Test {
 protected:
  void TearDown() override { NicsOfTheNext() = TwoNics(true); }
  static Side With(const std::string& role, bool dmabuf,
                   const std::map<std::string, std::string>& settings = {}) {
    NicsOfTheNext() = TwoNics(dmabuf);
    return Side(role, settings);
  }
  /// Under a grant, from a's memory to b's.
  void Move(const Side& a, const Side& b, const Region& local, const Region& there, int seed) {
    Connection to_b = a.To(b);
    Connection to_a = b.Known(a);
    const auto sent = source.Fill(seed);
    const Piece piece = Whole(local, ImportInto(to_b, there));
    const auto grant = to_a.OpenGrant({.transfers = 1});
    ASSERT_TRUE(grant.ok());
    auto written = to_b.Write({&piece, 1}, {.grant = *grant, .signal = 0});
    ASSERT_TRUE(written.ok()) << written.status().ToString();
    ASSERT_TRUE(written->Wait(Soon()).ok());
    ASSERT_TRUE(to_a.WaitGrant(*grant, 1, Soon()).ok());
    EXPECT_EQ(target.Read(), sent);
  }

  FakeMachine machine;
  DevicesInUse devices{machine};
  Bytes source{devices, kEndpointSize};
  Bytes target{devices, kEndpointSize};
};

TEST_F(EndpointVerbs, DeviceMemoryGoesOverVerbsWithoutACopy) {
  const Side a = With("trainer", true);
  const Side b = With("inference", true);
  const Region local = RegisterAt(a, source.memory(), Access::kLocal);
  const Region there = RegisterAt(b, target.memory(), Access::kGranted);
  const uint64_t copies = trace::CounterNamed("gpu.copies").value();
  Move(a, b, local, there, 1);
  EXPECT_EQ(trace::CounterNamed("gpu.copies").value(), copies);
  EXPECT_EQ(a.To(b).transport_name(), "verbs");
}

/// At either end: the other one may have NICs that do.
TEST_F(EndpointVerbs, WhereANicTakesNoDeviceMemoryTcpIsTaken) {
  for (const bool at_source : {true, false}) {
    testing::internal::CaptureStderr();
    const Side a = With("trainer", !at_source);
    const Side b = With("inference", at_source);
    const Region local = RegisterAt(a, source.memory(), Access::kLocal);
    const Region there = RegisterAt(b, target.memory(), Access::kGranted);
    Move(a, b, local, there, 2);
    EXPECT_EQ(a.To(b).transport_name(), "tcp");
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_THAT(told, HasSubstr("connections that are made from now on do without verbs"));
    EXPECT_THAT(told, HasSubstr("nvidia-peermem"));
  }
}

/// It is the memory that matters: verbs is back once the region is gone.
TEST_F(EndpointVerbs, HostMemoryAloneGoesOverVerbsAllTheSame) {
  const Side a = With("trainer", false);
  const Side b = With("inference", false);
  testing::internal::CaptureStderr();
  {
    const Region gone = RegisterAt(a, source.memory(), Access::kLocal);
  }
  testing::internal::GetCapturedStderr();
  Connection to_b = a.To(b);
  EXPECT_EQ(to_b.transport_name(), "verbs");
  // Device memory that comes now finds the connection made.
  testing::internal::CaptureStderr();
  const Region late = RegisterAt(a, source.memory(), Access::kLocal);
  testing::internal::GetCapturedStderr();
  std::vector<std::byte> host(kEndpointSize);
  const Region there = RegisterAt(b, HostMemory(host), Access::kReadWrite);
  const Piece piece = Whole(late, ImportInto(to_b, there));
  const auto refused = to_b.Write({&piece, 1}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("which transport verbs of this connection does not move"));
}

TEST_F(EndpointVerbs, WithoutTcpTheRefusalSaysWhatToAllow) {
  const Side a = With("trainer", false, {{"transport", "verbs"}});
  const auto region = a->Register(source.memory(), Access::kLocal);
  ASSERT_FALSE(region.ok());
  EXPECT_EQ(region.status().code(), Code::kUnavailable);
  EXPECT_THAT(region.status().message(), HasSubstr("allow another in setting transport"));
  EXPECT_THAT(region.status().message(), HasSubstr("nvidia-peermem"));
}

}  // namespace
}  // namespace weightcast
