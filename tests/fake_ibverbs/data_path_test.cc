#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_ibverbs/end.h"

namespace weightcast::fake {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DataPath, WriteLandsAndCompletes) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 100, 10), 0);
  EXPECT_THAT(w.a.Poll(), IsEmpty()) << "nothing moves in virtual time";
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(9, 102), "b" + std::string(100, 'a') + "b");
  const auto done = w.a.Poll();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(done[0].opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(done[0].wr_id, 100U);
  EXPECT_EQ(done[0].qp_num, w.a.qp->qp_num);
  EXPECT_THAT(w.b.Poll(), IsEmpty()) << "the target hears nothing of a plain write";
}

TEST(DataPath, WriteWithImmediateTakesAReceive) {
  Wired w;
  ASSERT_EQ(w.b.PostReceive(77), 0);
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 5000);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 5001), std::string(5000, 'a') + "b");
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  const auto got = w.b.Poll();
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].wr_id, 77U);
  EXPECT_EQ(got[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(got[0].byte_len, 5000U);
  EXPECT_EQ(got[0].imm_data, 0x01020304U);
  EXPECT_EQ(got[0].wc_flags, unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(got[0].qp_num, w.b.qp->qp_num);
  EXPECT_EQ(got[0].src_qp, w.a.qp->qp_num);
}

TEST(DataPath, AnEmptyWriteWithImmediateNeedsNoKey) {
  Wired w;
  ASSERT_EQ(w.b.PostReceive(1), 0);
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 0);
  request.wr.num_sge = 0;
  request.wr.wr.rdma = {};
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  EXPECT_EQ(w.b.Poll().size(), 1U);
}

TEST(DataPath, SendFillsTheReceive) {
  Wired w;
  ASSERT_EQ(w.b.PostReceive(1, 1000, 50), 0);
  ASSERT_EQ(w.b.PostReceive(2, 2000, 50), 0);
  auto plain = w.a.To(w.b, IBV_WR_SEND, 20);
  auto with_immediate = w.a.To(w.b, IBV_WR_SEND_WITH_IMM, 50);
  ASSERT_EQ(w.a.Post(plain), 0);
  ASSERT_EQ(w.a.Post(with_immediate), 0);
  w.fabric.Run();
  const auto got = w.b.Poll();
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].opcode, IBV_WC_RECV);
  EXPECT_EQ(got[0].byte_len, 20U);
  EXPECT_EQ(got[0].wc_flags, 0U);
  EXPECT_EQ(got[1].byte_len, 50U);
  EXPECT_EQ(got[1].imm_data, 0x01020304U);
  EXPECT_EQ(w.b.Text(999, 22), "b" + std::string(20, 'a') + "b");
  EXPECT_EQ(w.b.Text(1999, 52), "b" + std::string(50, 'a') + "b");
}

TEST(DataPath, ReadFetches) {
  Wired w;
  auto request = w.a.To(w.b, IBV_WR_RDMA_READ, 300, 40);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_EQ(w.a.Text(0, 301), std::string(300, 'b') + "a");
  const auto done = w.a.Poll();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(done[0].byte_len, 300U);
}

TEST(DataPath, InlineIsCopiedWhenPostedAndNeedsNoKey) {
  Wired w;
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 64);
  request.wr.send_flags |= IBV_SEND_INLINE;
  request.sge.lkey = 0;
  ASSERT_EQ(w.a.Post(request), 0);
  w.a.Fill('x');
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  EXPECT_EQ(w.b.Text(0, 65), std::string(64, 'a') + "b");
  request.sge.length = 65;
  EXPECT_EQ(w.a.Post(request), EINVAL) << "more than max_inline_data";
}

TEST(DataPath, WithoutInlineTheSourceIsReadWhenItLeaves) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 64), 0);
  w.a.Fill('x');
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 64), std::string(64, 'x'));
}

TEST(DataPath, GathersFromSeveralPlaces) {
  Wired w;
  w.a.memory[500] = '1';
  w.a.memory[900] = '2';
  std::array<ibv_sge, 2> sges = {ibv_sge{reinterpret_cast<uint64_t>(&w.a.memory[500]), 1, w.a.mr->lkey},
                                 ibv_sge{reinterpret_cast<uint64_t>(&w.a.memory[900]), 1, w.a.mr->lkey}};
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 0);
  request.wr.sg_list = sges.data();
  request.wr.num_sge = 2;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(w.a.verbs->PostSend(w.a.qp, &request.wr, &bad), 0);
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 3), "12b");
  request.wr.num_sge = 3;
  EXPECT_EQ(w.a.verbs->PostSend(w.a.qp, &request.wr, &bad), EINVAL) << "more than max_send_sge";
}

TEST(DataPath, AListStopsAtTheFirstThatIsRefused) {
  Wired w;
  auto first = w.a.To(w.b, IBV_WR_RDMA_WRITE, 10);
  auto second = w.a.To(w.b, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
  auto third = w.a.To(w.b, IBV_WR_RDMA_WRITE, 30);
  first.wr.sg_list = &first.sge;
  second.wr.sg_list = &second.sge;
  first.wr.next = &second.wr;
  second.wr.next = &third.wr;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(w.a.verbs->PostSend(w.a.qp, &first.wr, &bad), EOPNOTSUPP);
  EXPECT_EQ(bad, &second.wr);
  w.fabric.Run();
  EXPECT_EQ(w.a.Poll().size(), 1U);
  EXPECT_EQ(w.b.Text(0, 11), std::string(10, 'a') + "b");
}

TEST(DataPath, ASlotIsFreeOnlyOnceALaterSignalledCompletionIsPolled) {
  Wired w({.send_wr = 4});
  auto quiet = w.a.To(w.b, IBV_WR_RDMA_WRITE, 1);
  quiet.wr.send_flags = 0;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(w.a.Post(quiet), 0);
  ASSERT_EQ(w.a.Write(w.b, 4), 0);
  EXPECT_EQ(w.a.Write(w.b, 5), ENOMEM);
  w.fabric.Run();
  EXPECT_EQ(w.a.Write(w.b, 5), ENOMEM) << "done is not polled";
  EXPECT_EQ(w.a.Poll().size(), 1U);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(w.a.Post(quiet), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Poll(), IsEmpty());
  EXPECT_EQ(w.a.Write(w.b, 5), ENOMEM) << "four that were never signalled fill it for ever";
}

TEST(DataPath, AQueuePairMaySignalAll) {
  Wired w;
  ibv_qp* mine = w.a.NewQp(true);
  ibv_qp* theirs = w.b.NewQp();
  ASSERT_EQ(w.a.ConnectTo(w.b, mine, theirs), 0);
  ASSERT_EQ(w.b.ConnectTo(w.a, theirs, mine), 0);
  auto quiet = w.a.To(w.b, IBV_WR_RDMA_WRITE, 1);
  quiet.wr.send_flags = 0;
  ASSERT_EQ(w.a.Post(quiet, mine), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  EXPECT_EQ(w.a.verbs->DestroyQp(mine), 0);
  EXPECT_EQ(w.b.verbs->DestroyQp(theirs), 0);
}

TEST(DataPath, OneQueuePairKeepsItsOrderThroughAnyDelay) {
  Wired w;
  w.fabric.SetDelay(std::chrono::microseconds(5), std::chrono::milliseconds(1));
  w.fabric.Shuffle(true);
  for (size_t i = 1; i <= 16; ++i) ASSERT_EQ(w.a.Write(w.b, i), 0);
  w.fabric.Run();
  const auto done = w.a.Poll();
  ASSERT_EQ(done.size(), 16U);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(done[i].wr_id, i + 1);
}

TEST(DataPath, ReceivesBeyondTheQueueAreRefused) {
  Wired w({.receives = 2});
  EXPECT_EQ(w.b.PostReceive(1), 0);
  EXPECT_EQ(w.b.PostReceive(2), 0);
  EXPECT_EQ(w.b.PostReceive(3), ENOMEM);
}

TEST(DataPath, CountersTell) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 100), 0);
  auto read = w.a.To(w.b, IBV_WR_RDMA_READ, 7);
  ASSERT_EQ(w.a.Post(read), 0);
  w.fabric.Run();
  const Counters a = w.fabric.CountersOf(*w.a.verbs, 0);
  const Counters b = w.fabric.CountersOf(*w.b.verbs, 0);
  EXPECT_EQ(a.posted, 2U);
  EXPECT_EQ(a.messages_sent, 2U);
  EXPECT_EQ(b.messages_received, 2U);
  EXPECT_EQ(a.bytes_sent, 100U);
  EXPECT_EQ(b.bytes_received, 100U);
  EXPECT_EQ(b.bytes_sent, 7U);
  EXPECT_EQ(a.bytes_received, 7U);
  EXPECT_EQ(a.qps + a.cqs + a.mrs + a.srqs + a.pds + a.channels + a.contexts, 7);
}

}  // namespace
}  // namespace weightcast::fake
