#include "transport/verbs/completion_queue.h"
#include "transport/verbs/protection_domain.h"
#include "unit/transport/verbs_device.h"

namespace weightcast::transport::verbs {
namespace {

/// `count` completions of a queue pair that is gone stand in the queue.
void LeaveCompletions(const RdmaDevice& device, const CompletionQueue& completions, uint32_t count) {
  ProtectionDomain domain(device);
  Require(domain.Create().ok(), "no domain");
  ibv_qp_init_attr wanted{};
  wanted.send_cq = wanted.recv_cq = completions.handle();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {
      .max_send_wr = count, .max_recv_wr = 0, .max_send_sge = 1, .max_recv_sge = 0, .max_inline_data = 0};
  ibv_qp* const queue = device.api().CreateQp(domain.handle(), &wanted);
  Require(queue != nullptr, "no queue pair");
  ibv_qp_attr broken{};
  broken.qp_state = IBV_QPS_ERR;
  EXPECT_EQ(device.api().ModifyQp(queue, &broken, IBV_QP_STATE), 0);
  for (uint32_t i = 0; i < count; ++i) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(device.api().PostSend(queue, &request, &bad), 0);
  }
  EXPECT_EQ(device.api().DestroyQp(queue), 0);
}

class VerbsCompletionQueueTest : public ::testing::Test {
 protected:
  static fake::HostConfig Keeping() {
    fake::HostConfig config = Nics(1);
    config.devices[0].keeps_completions = true;
    return config;
  }
  void SetUp() override { ASSERT_TRUE(completions.Create(100).ok()); }

  OpenedDevice opened{Keeping()};
  CompletionQueue completions{opened.device};
};

TEST_F(VerbsCompletionQueueTest, RoomIsWhatIsNotTaken) {
  EXPECT_EQ(completions.room(), 100U);
  completions.TakeRoom(40);
  EXPECT_EQ(completions.room(), 60U);
  completions.GiveRoom(1);
  EXPECT_EQ(completions.room(), 61U);
}

TEST_F(VerbsCompletionQueueTest, RoomOfAQueuePairThatIsGoneComesBackOnceItsCompletionsAreTaken) {
  for (const uint32_t count : {CompletionQueue::kBatch, CompletionQueue::kBatch + 8}) {
    SCOPED_TRACE(count);
    completions.TakeRoom(count);
    LeaveCompletions(opened.device, completions, count);
    completions.GiveRoomOnceEmpty(count);
    EXPECT_EQ(completions.Poll().size(), CompletionQueue::kBatch);
    EXPECT_EQ(completions.room(), 100 - count) << "more may stand behind these";
    EXPECT_EQ(completions.Poll().size(), count - CompletionQueue::kBatch);
    EXPECT_EQ(completions.room(), 100U);
    EXPECT_TRUE(completions.Poll().empty());
    EXPECT_EQ(completions.room(), 100U) << "once";
  }
}

}  // namespace
}  // namespace weightcast::transport::verbs
