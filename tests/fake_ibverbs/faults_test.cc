#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_ibverbs/end.h"

namespace weightcast::fake {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(NotReady, AReceiveThatComesLateIsFoundByTheTimer) {
  Wired w({.rnr_retry = 7, .min_rnr_timer = 12});
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 10);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Poll(), IsEmpty()) << "it would wait for ever";
  w.fabric.Advance(10s);
  EXPECT_EQ(w.b.Text(0, 1), "b");
  EXPECT_GE(w.fabric.CountersOf(*w.b.verbs, 0).rnr_naks, 10000U);
  ASSERT_EQ(w.b.PostReceive(1), 0);
  w.fabric.Advance(640us);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  EXPECT_EQ(w.b.Poll().size(), 1U);
}

TEST(NotReady, RunGoesOnOnceThereIsAReceive) {
  Wired w;
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 10);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  ASSERT_EQ(w.b.PostReceive(1), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
}

TEST(NotReady, CountedRetriesEnd) {
  Wired w({.rnr_retry = 2, .min_rnr_timer = 12});
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 10);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Advance(2 * 640us - 1ns);
  EXPECT_THAT(w.a.Poll(), IsEmpty());
  w.fabric.Advance(1ns);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_RNR_RETRY_EXC_ERR));
  EXPECT_EQ(w.b.State(), IBV_QPS_RTS) << "the target knows nothing";
}

TEST(Delay, IsThatOfTheMessageAndOfTheHost) {
  Wired w;
  w.fabric.SetDelay(1ms);
  w.fabric.SetDelay(*w.b.verbs, 3ms);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  ASSERT_EQ(w.b.Write(w.a, 1, 100), 0);
  w.fabric.Advance(1ms - 1ns);
  EXPECT_EQ(w.b.Text(0, 1), "b");
  w.fabric.Advance(1ns);
  EXPECT_EQ(w.b.Text(0, 1), "a");
  EXPECT_EQ(w.a.Text(100, 1), "a");
  w.fabric.Advance(2ms);
  EXPECT_EQ(w.a.Text(100, 1), "a") << "b's own first byte by now is a's";
  EXPECT_THAT(w.b.Statuses(), ElementsAre(IBV_WC_SUCCESS));
}

TEST(Delay, AnAcknowledgementMayBeLate) {
  Wired w;
  w.fabric.SetAckDelay(5ms);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Advance(4ms);
  EXPECT_EQ(w.b.Text(0, 1), "a");
  EXPECT_THAT(w.a.Poll(), IsEmpty());
  w.fabric.Advance(1ms);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
}

/// The order in which eight queue pairs' writes are completed.
std::vector<uint64_t> OrderOfEight(uint64_t seed) {
  Fabric fabric({.virtual_time = true, .seed = seed});
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  fabric.Shuffle(true);
  std::vector<ibv_qp*> mine;
  std::vector<ibv_qp*> theirs;
  for (uint64_t i = 0; i < 8; ++i) {
    mine.push_back(a.NewQp());
    theirs.push_back(b.NewQp());
    EXPECT_EQ(a.ConnectTo(b, mine.back(), theirs.back()), 0);
    EXPECT_EQ(b.ConnectTo(a, theirs.back(), mine.back()), 0);
    auto request = a.To(b, IBV_WR_RDMA_WRITE, 1);
    for (uint64_t k = 0; k < 2; ++k) {
      request.wr.wr_id = 10 * i + k;
      EXPECT_EQ(a.Post(request, mine.back()), 0);
    }
  }
  fabric.Run();
  std::vector<uint64_t> order;
  for (const ibv_wc& wc : a.Poll()) order.push_back(wc.wr_id);
  for (ibv_qp* qp : mine) EXPECT_EQ(a.verbs->DestroyQp(qp), 0);
  for (ibv_qp* qp : theirs) EXPECT_EQ(b.verbs->DestroyQp(qp), 0);
  return order;
}

TEST(Shuffle, DrawsAnOrderBetweenQueuePairsFromTheSeed) {
  const auto order = OrderOfEight(1);
  ASSERT_EQ(order.size(), 16U);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_LT(std::find(order.begin(), order.end(), 10 * i),
              std::find(order.begin(), order.end(), 10 * i + 1));
  }
  EXPECT_EQ(OrderOfEight(1), order);
  EXPECT_NE(OrderOfEight(2), order);
}

TEST(Hold, KeepsWhatAHostHasPosted) {
  Wired w;
  w.fabric.Hold(*w.a.verbs, Direction::kOut);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  ASSERT_EQ(w.b.Write(w.a, 2, 10), 0);
  w.fabric.Run();
  w.fabric.Advance(1h);
  EXPECT_EQ(w.b.Text(0, 1), "b");
  EXPECT_EQ(w.a.Text(10, 2), "bb") << "the other way is open";
  w.fabric.Release(*w.a.verbs);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS)) << "no timer ran";
}

TEST(Hold, KeepsWhatGoesIntoAHost) {
  Wired w;
  w.fabric.Hold(*w.b.verbs, Direction::kIn);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 1), "b");
  w.fabric.Release(*w.b.verbs);
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 1), "a");
}

TEST(DropAck, TheTargetHasAllAndTheWriterKnowsNothing) {
  Wired w({.timeout = 14, .retry_cnt = 2});
  ASSERT_EQ(w.b.PostReceive(1), 0);
  w.fabric.DropAck(*w.a.verbs, 2);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 100);
  ASSERT_EQ(w.a.Post(request), 0);
  ASSERT_EQ(w.a.Write(w.b, 200), 0);
  const Duration limit = Duration(4096) * (1 << 14) * 3;
  w.fabric.Advance(limit - 1ns);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  EXPECT_EQ(w.b.Poll().size(), 1U);
  EXPECT_EQ(w.b.Text(0, 101), std::string(100, 'a') + "b");
  w.fabric.Advance(1ns);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(w.b.State(), IBV_QPS_RTS);
}

TEST(DropAck, AMessageMayBeTorn) {
  Wired w;
  ASSERT_EQ(w.b.PostReceive(1), 0);
  w.fabric.DropAck(*w.a.verbs, 1, 30);
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 100);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 31), std::string(30, 'a') + "b");
  EXPECT_THAT(w.b.Poll(), IsEmpty());
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_RETRY_EXC_ERR));
}

TEST(Links, AShortLossIsRetriedAndALongOneBreaks) {
  Wired w({.timeout = 14, .retry_cnt = 2});
  const Duration timeout = Duration(4096) * (1 << 14);
  w.fabric.SetLink(*w.b.verbs, 0, Link::kDown);
  ibv_port_attr port{};
  ASSERT_EQ(w.b.verbs->QueryPort(w.b.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Advance(timeout);
  w.fabric.SetLink(*w.b.verbs, 0, Link::kUp);
  w.fabric.Advance(timeout);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  EXPECT_EQ(w.fabric.CountersOf(*w.a.verbs, 0).retries, 2U);
  EXPECT_THAT(w.b.Event(), Optional(IBV_EVENT_PORT_ERR));
  EXPECT_THAT(w.b.Event(), Optional(IBV_EVENT_PORT_ACTIVE));

  w.fabric.SetLink(*w.a.verbs, 0, Link::kCut);
  ASSERT_EQ(w.a.Write(w.b, 2), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_RETRY_EXC_ERR));
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_QP_LAST_WQE_REACHED)) << "and none of the port";
}

TEST(Kill, AHostGoesWithoutAWord) {
  Wired w;
  ASSERT_EQ(w.b.Write(w.a, 3), 0);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Kill(*w.b.verbs);
  EXPECT_THAT(w.a.Poll(), IsEmpty());
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_RETRY_EXC_ERR));
  EXPECT_EQ(w.b.Text(0, 1), "b");
  EXPECT_EQ(w.a.Text(0, 1), "a") << "what it had posted is gone";
  EXPECT_EQ(w.b.Write(w.a, 1), EIO);
  EXPECT_EQ(w.b.NewQp(), nullptr);
  EXPECT_EQ(errno, EIO);
  EXPECT_THAT(w.b.Poll(), IsEmpty());
}

TEST(Kill, SoDoesOneWhoseTableIsDropped) {
  Fabric fabric({.virtual_time = true});
  End a(fabric.NewHost());
  auto table = fabric.NewHost();
  ibv_device** list = table->GetDeviceList(nullptr);
  ibv_context* context = table->OpenDevice(list[0]);
  table->FreeDeviceList(list);
  ASSERT_NE(context, nullptr);
  ASSERT_NE(table->AllocPd(context), nullptr);
  table.reset();
  fabric.Run();
}

TEST(Fail, TheNthCallAndAsManyAsWanted) {
  Wired w;
  const drivers::Ibverbs& a = *w.a.verbs;
  w.fabric.Fail(a, Call::kPostSend, 2, ENOMEM);
  EXPECT_EQ(w.a.Write(w.b, 1), 0);
  EXPECT_EQ(w.a.Write(w.b, 1), ENOMEM);
  EXPECT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Fail(a, Call::kCreateQp, 1, ENOMEM, 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(w.a.NewQp(), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  }
  ibv_qp* qp = w.a.NewQp();
  ASSERT_NE(qp, nullptr);
  w.fabric.Fail(a, Call::kModifyQp, 1, ETIMEDOUT);
  EXPECT_EQ(w.a.ToInit(qp), ETIMEDOUT);
  EXPECT_EQ(w.a.verbs->DestroyQp(qp), 0);
  w.fabric.Fail(a, Call::kRegMr, 1, EFAULT);
  EXPECT_EQ(w.a.verbs->RegMr(w.a.pd, w.a.memory.data(), 1, 0), nullptr);
  EXPECT_EQ(errno, EFAULT);
}

TEST(Leaks, ACleanEndLeavesNothing) {
  Fabric fabric;
  auto host = fabric.NewHost();
  {
    End end(host);
  }
  const Counters left = fabric.CountersOf(*host, 0);
  EXPECT_EQ(left.contexts + left.pds + left.mrs + left.channels + left.cqs + left.srqs + left.qps, 0);
}

}  // namespace
}  // namespace weightcast::fake
