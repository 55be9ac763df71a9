#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>

#include <thread>

#include "base/fd.h"
#include "fake_ibverbs/end.h"

namespace weightcast::fake {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

bool Readable(int fd, int timeout_ms = 0) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&wait, 1, timeout_ms) == 1;
}

/// Takes the event of the end's channel; false: there is none.
bool TakeCqEvent(End& end) {
  ibv_cq* cq = nullptr;
  if (end.verbs->GetCqEvent(end.channel, &cq) != 0) {
    EXPECT_EQ(errno, EAGAIN);
    return false;
  }
  EXPECT_EQ(cq, end.cq);
  end.verbs->AckCqEvents(cq, 1);
  return true;
}

TEST(Channel, AnArmedQueueTellsOnce) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Run();
  EXPECT_FALSE(TakeCqEvent(w.a)) << "not armed";
  ASSERT_EQ(w.a.verbs->ReqNotifyCq(w.a.cq, false), 0);
  EXPECT_FALSE(Readable(w.a.channel->fd)) << "what came before is for who polls after arming";
  ASSERT_EQ(w.a.Write(w.b, 2), 0);
  ASSERT_EQ(w.a.Write(w.b, 3), 0);
  w.fabric.Run();
  EXPECT_TRUE(Readable(w.a.channel->fd));
  EXPECT_TRUE(TakeCqEvent(w.a));
  EXPECT_FALSE(TakeCqEvent(w.a));
  EXPECT_FALSE(Readable(w.a.channel->fd));
  EXPECT_EQ(w.a.Poll().size(), 3U);
}

TEST(Channel, SolicitedOnlyWaitsForThem) {
  Wired w;
  for (uint64_t i = 0; i < 2; ++i) ASSERT_EQ(w.b.PostReceive(i), 0);
  ASSERT_EQ(w.b.verbs->ReqNotifyCq(w.b.cq, true), 0);
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE_WITH_IMM, 1);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_FALSE(TakeCqEvent(w.b));
  request.wr.send_flags |= IBV_SEND_SOLICITED;
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_TRUE(TakeCqEvent(w.b));
}

TEST(Channel, DestroyingAQueueTakesItsEventsAlong) {
  Wired w;
  ibv_cq* cq = w.a.verbs->CreateCq(w.a.context, 4, w.a.channel);
  ASSERT_NE(cq, nullptr);
  EXPECT_EQ(w.a.verbs->ReqNotifyCq(cq, false), 0);
  EXPECT_EQ(w.a.verbs->DestroyCq(cq), 0);
  EXPECT_FALSE(Readable(w.a.channel->fd));
}

TEST(Channel, DestroyingWaitsForAcknowledgements) {
  Wired w;
  ASSERT_EQ(w.a.verbs->ReqNotifyCq(w.a.cq, false), 0);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Run();
  ibv_cq* cq = nullptr;
  ASSERT_EQ(w.a.verbs->GetCqEvent(w.a.channel, &cq), 0);
  ASSERT_EQ(w.a.verbs->DestroyQp(w.a.qp), 0);
  w.a.qp = nullptr;
  std::thread late([&] { w.a.verbs->AckCqEvents(cq, 1); });
  EXPECT_EQ(w.a.verbs->DestroyCq(w.a.cq), 0);
  late.join();
  w.a.cq = w.a.verbs->CreateCq(w.a.context, 4, w.a.channel);
}

TEST(Background, WakesASleeperInEpoll) {
  Fabric fabric({.background = true});
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  ASSERT_EQ(a.ConnectTo(b, a.qp, b.qp), 0);
  ASSERT_EQ(b.ConnectTo(a, b.qp, a.qp), 0);
  fabric.SetDelay(1ms);
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u32 = 5}};
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, b.channel->fd, &event), 0);
  ASSERT_EQ(b.PostReceive(1), 0);
  ASSERT_EQ(b.verbs->ReqNotifyCq(b.cq, false), 0);
  auto request = a.To(b, IBV_WR_RDMA_WRITE_WITH_IMM, 1);
  ASSERT_EQ(a.Post(request), 0);
  epoll_event got{};
  ASSERT_EQ(epoll_wait(epoll.get(), &got, 1, 10000), 1) << "nobody polls";
  EXPECT_TRUE(TakeCqEvent(b));
  EXPECT_EQ(b.Poll().size(), 1U);
}

TEST(Background, ABlockingWaitEnds) {
  Fabric fabric({.background = true});
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  ASSERT_EQ(a.ConnectTo(b, a.qp, b.qp), 0);
  ASSERT_EQ(b.ConnectTo(a, b.qp, a.qp), 0);
  fcntl(a.channel->fd, F_SETFL, 0);
  ASSERT_EQ(a.verbs->ReqNotifyCq(a.cq, false), 0);
  std::thread sleeper([&] { EXPECT_TRUE(TakeCqEvent(a)); });
  ASSERT_EQ(a.Write(b, 1), 0);
  sleeper.join();
}

TEST(RealTime, WhoeverPollsMovesAll) {
  Fabric fabric;
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  ASSERT_EQ(a.ConnectTo(b, a.qp, b.qp), 0);
  ASSERT_EQ(b.ConnectTo(a, b.qp, a.qp), 0);
  a.Fill('a');
  ASSERT_EQ(a.Write(b, 1), 0);
  EXPECT_THAT(b.Poll(), IsEmpty());
  EXPECT_EQ(b.Text(0, 1), "a");
}

TEST(Overrun, BreaksTheQueueAndItsQueuePairs) {
  Wired w({.cq_entries = 2});
  for (size_t i = 1; i <= 4; ++i) ASSERT_EQ(w.a.Write(w.b, i), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_CQ_ERR));
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_QP_LAST_WQE_REACHED));
  EXPECT_EQ(w.a.State(), IBV_QPS_ERR);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS, IBV_WC_SUCCESS));
  EXPECT_THAT(w.a.Poll(), IsEmpty());
}

TEST(Inject, AQueuePairsErrorBreaksThatOne) {
  Wired w;
  ibv_qp* other = w.a.NewQp();
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  EXPECT_FALSE(Readable(w.a.context->async_fd));
  w.fabric.Inject(*w.a.verbs, 0, IBV_EVENT_QP_FATAL, w.a.qp->qp_num);
  EXPECT_TRUE(Readable(w.a.context->async_fd));
  ibv_async_event event{};
  ASSERT_EQ(w.a.verbs->GetAsyncEvent(w.a.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(event.element.qp, w.a.qp);
  w.a.verbs->AckAsyncEvent(&event);
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_QP_LAST_WQE_REACHED));
  EXPECT_EQ(w.a.Event(), std::nullopt);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(w.a.verbs->DestroyQp(other), 0);
}

TEST(Inject, ADevicesErrorBreaksAll) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Inject(*w.a.verbs, 0, IBV_EVENT_DEVICE_FATAL);
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_DEVICE_FATAL));
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(w.b.State(), IBV_QPS_RTS);
}

TEST(Inject, OthersOnlyTell) {
  Wired w;
  w.fabric.Inject(*w.a.verbs, 0, IBV_EVENT_GID_CHANGE);
  w.fabric.Inject(*w.a.verbs, 0, IBV_EVENT_SRQ_ERR);
  w.fabric.Inject(*w.a.verbs, 0, IBV_EVENT_CQ_ERR);
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_GID_CHANGE));
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_SRQ_ERR));
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_CQ_ERR));
}

}  // namespace
}  // namespace weightcast::fake
