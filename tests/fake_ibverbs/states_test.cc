#include <endian.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_ibverbs/end.h"

namespace weightcast::fake {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(States, EachStepWantsItsOwnBits) {
  Fabric fabric;
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  ibv_qp_attr rtr = a.RtrTo(b, b.qp);
  EXPECT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask), EINVAL) << "RESET to RTR";
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = 1;
  EXPECT_EQ(a.verbs->ModifyQp(a.qp, &init, IBV_QP_STATE | IBV_QP_PORT), EINVAL) << "bits are missing";
  ASSERT_EQ(a.ToInit(a.qp), 0);
  EXPECT_EQ(a.ToRts(a.qp), EINVAL) << "INIT to RTS";
  for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
    if (bit == IBV_QP_STATE || (End::kRtrMask & bit) == 0) continue;
    EXPECT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask & ~bit), EINVAL) << bit;
  }
  EXPECT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask | IBV_QP_TIMEOUT), EINVAL) << "a bit too many";
  ASSERT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask), 0);
  EXPECT_EQ(a.ToInit(a.qp), EINVAL);
  ASSERT_EQ(a.ToRts(a.qp), 0);
  EXPECT_EQ(a.State(), IBV_QPS_RTS);
  EXPECT_EQ(a.SetState(IBV_QPS_SQD), EINVAL);
  ASSERT_EQ(a.SetState(IBV_QPS_ERR), 0);
  EXPECT_EQ(a.ToRts(a.qp), EINVAL);
  ASSERT_EQ(a.SetState(IBV_QPS_RESET), 0);
  ASSERT_EQ(a.ConnectTo(b, a.qp, b.qp), 0) << "and once more";
}

TEST(States, ValuesAreChecked) {
  Fabric fabric;
  HostConfig config;
  config.devices[0].ports[0].mtu = IBV_MTU_1024;
  End a(fabric.NewHost(config));
  End b(fabric.NewHost());
  ASSERT_EQ(a.ToInit(a.qp), 0);
  ibv_qp_attr rtr = a.RtrTo(b, b.qp);
  EXPECT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask), EINVAL) << "an MTU above the port's";
  rtr.path_mtu = IBV_MTU_1024;
  rtr.ah_attr.grh.sgid_index = 9;
  EXPECT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask), EINVAL) << "no such GID";
  rtr.ah_attr.grh.sgid_index = 0;
  EXPECT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask), EINVAL) << "link-local does not reach IPv4";
  rtr.ah_attr.grh.sgid_index = 1;
  EXPECT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask), 0);
}

TEST(States, OnlyReadyToSendTakesRequests) {
  Fabric fabric;
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  EXPECT_EQ(a.Write(b, 1), EINVAL);
  ASSERT_EQ(a.ToInit(a.qp), 0);
  EXPECT_EQ(a.Write(b, 1), EINVAL);
  ibv_qp_attr rtr = a.RtrTo(b, b.qp);
  ASSERT_EQ(a.verbs->ModifyQp(a.qp, &rtr, End::kRtrMask), 0);
  EXPECT_EQ(a.Write(b, 1), EINVAL);
}

TEST(States, ReadyToReceiveIsEnoughForTheTarget) {
  Fabric fabric({.virtual_time = true});
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  ASSERT_EQ(a.ConnectTo(b, a.qp, b.qp), 0);
  ASSERT_EQ(b.ToInit(b.qp), 0);
  ASSERT_EQ(a.Write(b, 1), 0);
  fabric.Advance(1ms);
  EXPECT_THAT(a.Poll(), IsEmpty()) << "not ready yet: it retries";
  ibv_qp_attr rtr = b.RtrTo(a, a.qp);
  ASSERT_EQ(b.verbs->ModifyQp(b.qp, &rtr, End::kRtrMask), 0);
  fabric.Run();
  EXPECT_THAT(a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
}

TEST(States, AnErrorFlushesAllThatIsOutAndAllThatComes) {
  Wired w;
  auto quiet = w.a.To(w.b, IBV_WR_RDMA_WRITE, 1);
  quiet.wr.send_flags = 0;
  ASSERT_EQ(w.a.Post(quiet), 0);
  ASSERT_EQ(w.a.Write(w.b, 2), 0);
  ASSERT_EQ(w.a.SetState(IBV_QPS_ERR), 0);
  ASSERT_EQ(w.a.Write(w.b, 3), 0);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR));
  EXPECT_THAT(w.a.Event(), Optional(IBV_EVENT_QP_LAST_WQE_REACHED));
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 1), "b");
}

TEST(States, DifferentFirstNumbersDoNotTalk) {
  Wired w;
  ASSERT_EQ(w.b.SetState(IBV_QPS_RESET), 0);
  ibv_qp_attr rtr = w.b.RtrTo(w.a, w.a.qp);
  rtr.rq_psn = 1001;
  ASSERT_EQ(w.b.ToInit(w.b.qp), 0);
  ASSERT_EQ(w.b.verbs->ModifyQp(w.b.qp, &rtr, End::kRtrMask), 0);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_RETRY_EXC_ERR));
}

TEST(States, ADestroyedPeerEndsTheRetriesInTime) {
  Wired w({.timeout = 12, .retry_cnt = 2});
  ASSERT_EQ(w.b.verbs->DestroyQp(w.b.qp), 0);
  w.b.qp = nullptr;
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  const Duration limit = Duration(4096) * (1 << 12) * 3;
  w.fabric.Advance(limit - 1ns);
  EXPECT_THAT(w.a.Poll(), IsEmpty());
  w.fabric.Advance(1ns);
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_RETRY_EXC_ERR));
  EXPECT_EQ(w.a.State(), IBV_QPS_ERR);
}

TEST(States, DestroyingStopsWhatIsOnItsWayAndSweepsTheQueue) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Run();
  w.b.Fill('b');
  ASSERT_EQ(w.a.Write(w.b, 2), 0);
  ASSERT_EQ(w.a.verbs->DestroyQp(w.a.qp), 0);
  w.a.qp = nullptr;
  w.fabric.Run();
  EXPECT_EQ(w.b.Text(0, 1), "b");
  EXPECT_THAT(w.a.Poll(), IsEmpty());
}

TEST(States, ADeviceMayKeepCompletionsOfTheDestroyed) {
  HostConfig config;
  config.devices[0].keeps_completions = true;
  Wired w({}, config);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Run();
  ASSERT_EQ(w.a.verbs->DestroyQp(w.a.qp), 0);
  w.a.qp = nullptr;
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
}

TEST(Devices, RoceHasALinkLocalGidAndAnAddress) {
  Fabric fabric;
  HostConfig config;
  config.devices[0].ports[0].rail = 3;
  End end(fabric.NewHost(config));
  ibv_port_attr port{};
  ASSERT_EQ(end.verbs->QueryPort(end.context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.max_msg_sz, 1U << 31);
  ibv_gid_entry entry{};
  ASSERT_EQ(end.verbs->QueryGid(end.context, 1, 0, &entry), 0);
  EXPECT_EQ(be64toh(entry.gid.global.subnet_prefix), 0xfe80'0000'0000'0000U);
  ASSERT_EQ(end.verbs->QueryGid(end.context, 1, 1, &entry), 0);
  EXPECT_THAT(std::vector<uint8_t>(entry.gid.raw + 10, entry.gid.raw + 16),
              ElementsAre(0xff, 0xff, 10, 3, 0, 1));
  EXPECT_EQ(entry.gid_type, uint32_t{IBV_GID_TYPE_ROCE_V2});
  EXPECT_EQ(end.verbs->QueryGid(end.context, 1, 2, &entry), ENODATA);
  EXPECT_EQ(end.verbs->QueryGid(end.context, 1, 99, &entry), EINVAL);
  EXPECT_EQ(end.verbs->QueryPort(end.context, 2, &port), EINVAL);
}

TEST(Devices, InfiniBandConnectsByLid) {
  HostConfig config;
  config.devices[0].ports[0].infiniband = true;
  Wired w({.gid_index = 0}, config);
  ASSERT_EQ(w.a.Write(w.b, 5), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
}

TEST(Devices, RailsDoNotMeet) {
  Fabric fabric({.virtual_time = true});
  HostConfig two;
  two.devices.resize(2);
  two.devices[1].name = "fake1";
  two.devices[1].ports[0].rail = 1;
  End a(fabric.NewHost(two));
  End same(fabric.NewHost(two));
  End other(same.verbs, {.device = 1});
  EXPECT_EQ(a.ConnectTo(same, a.qp, same.qp), 0);
  ASSERT_EQ(a.SetState(IBV_QPS_RESET), 0);
  EXPECT_EQ(a.ConnectTo(other, a.qp, other.qp), EINVAL) << "Ethernet finds no route";

  for (DeviceConfig& device : two.devices) device.ports[0].infiniband = true;
  End c(fabric.NewHost(two));
  End d(fabric.NewHost(two), {.device = 1});
  ASSERT_EQ(c.ConnectTo(d, c.qp, d.qp), 0) << "InfiniBand finds out when it sends";
  ASSERT_EQ(d.ConnectTo(c, d.qp, c.qp), 0);
  ASSERT_EQ(c.Write(d, 1), 0);
  fabric.Run();
  EXPECT_THAT(c.Statuses(), ElementsAre(IBV_WC_RETRY_EXC_ERR));
}

}  // namespace
}  // namespace weightcast::fake
