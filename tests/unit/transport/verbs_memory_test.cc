#include <gmock/gmock.h>

#include "transport/verbs/protection_domain.h"
#include "transport/verbs/receive_buffers.h"
#include "unit/transport/verbs_device.h"

// What a device lets in and out of memory, and what it does not.

namespace weightcast::transport::verbs {
namespace {

using fake::Call;
using ::testing::HasSubstr;

class VerbsMemoryTest : public ::testing::Test {
 protected:
  static constexpr int kRead = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  void SetUp() override { ASSERT_TRUE(domain.Create().ok()); }

  OpenedDevice opened;
  ProtectionDomain domain{opened.device};
  std::array<std::byte, 4096> bytes{};
};

TEST_F(VerbsMemoryTest, MemoryThatMayOnlyBeReadIsRegisteredWithoutLocalWrites) {
  opened.fabric.Fail(*opened.host, Call::kRegMr, 1, EFAULT);
  const auto region = domain.RegisterMemory(bytes.data(), bytes.size(), kRead);
  ASSERT_TRUE(region.ok()) << region.status().message();
  EXPECT_TRUE(domain.DeregisterMemory(*region).ok());
  // Peers may write there: then nothing less will do.
  opened.fabric.Fail(*opened.host, Call::kRegMr, 1, EFAULT);
  const auto refused = domain.RegisterMemory(bytes.data(), bytes.size(), kRead | IBV_ACCESS_REMOTE_WRITE);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("nic0 cannot register 4"));
}

TEST_F(VerbsMemoryTest, ARegionThatTheDeviceKeepsIsNotSaidToBeGone) {
  const auto region = domain.RegisterMemory(bytes.data(), bytes.size(), kRead);
  ASSERT_TRUE(region.ok());
  opened.fabric.Fail(*opened.host, Call::kDeregMr, 1, EBUSY);
  EXPECT_THAT(domain.DeregisterMemory(*region).message(), HasSubstr("do not free or reuse"));
  EXPECT_TRUE(domain.DeregisterMemory(*region).ok());
  EXPECT_TRUE(domain.DeregisterMemory(nullptr).ok());
}

TEST_F(VerbsMemoryTest, ReceiveBuffersThatCouldNotBePostedArePostedWithTheNext) {
  constexpr uint32_t kCount = 2;
  opened.fabric.Fail(*opened.host, Call::kPostSrqRecv, 1, ENOMEM);
  ReceiveBuffers receives(opened.device);
  const Status refused = receives.Create(domain.handle(), kCount);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("nic0: cannot post receives"));
  EXPECT_TRUE(receives.Repost().ok());
  EXPECT_TRUE(receives.Repost().ok()) << "there is nothing to post";
  // A device that claims to have received more than was posted.
  ibv_wc completion{};
  completion.wr_id = ReceiveBuffers::kId | 1;
  completion.byte_len = 1 << 20;
  EXPECT_EQ(receives.Take(completion).size(), kMaxMessage);
}

}  // namespace
}  // namespace weightcast::transport::verbs
