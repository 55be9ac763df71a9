#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "drivers/ibverbs/ibverbs.h"
#include "drivers/ibverbs/load.h"

namespace weightcast::drivers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LoadIbverbs, SaysWhichLibraryIsMissingAndWhoHasIt) {
  const auto loaded = LoadIbverbsFrom("libibverbs-of-nobody.so.9");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnavailable);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("libibverbs-of-nobody.so.9 cannot be loaded"), HasSubstr("libibverbs1"),
                    HasSubstr("ibverbs-providers"), HasSubstr("rdma-core")));
}

TEST(LoadIbverbs, SaysWhichFunctionIsMissing) {
  const auto loaded = LoadIbverbsFrom("libm.so.6");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnavailable);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("libm.so.6 has no ibv_get_device_list"), HasSubstr("rdma-core")));
}

TEST(LoadIbverbs, LoadsOnceAndGivesTheLibrarysWords) {
  auto loaded = LoadIbverbs();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().ToString();
  EXPECT_EQ(LoadIbverbs().value(), loaded.value());
  EXPECT_EQ((*loaded)->StatusText(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
  EXPECT_EQ((*loaded)->EventText(IBV_EVENT_PORT_ERR), "port error");
}

// Without devices the list is empty, or null with ENOSYS where the kernel has no RDMA at all.
TEST(LoadIbverbs, ListsDevices) {
  auto loaded = LoadIbverbs();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().ToString();
  int count = -1;
  ibv_device** list = (*loaded)->GetDeviceList(&count);
  if (list == nullptr) return;
  ASSERT_GE(count, 0);
  EXPECT_EQ(list[count], nullptr);
  (*loaded)->FreeDeviceList(list);
}

/// A driver's part of a context, as libibverbs makes it, without a driver.
struct Provider {
  verbs_context extended{};
  Provider() {
    extended.sz = sizeof extended;
    extended.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  }
  ibv_context* context() { return &extended.context; }
};

TEST(LoadIbverbs, QueryPortAsksTheDriverWithAnEmptyStruct) {
  auto loaded = LoadIbverbs();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().ToString();
  Provider provider;
  provider.extended.query_port = [](ibv_context*, uint8_t port, ibv_port_attr* attr, size_t size) {
    attr->lid = static_cast<uint16_t>(100 + port);
    return size == sizeof *attr ? 0 : EINVAL;
  };
  ibv_port_attr attr;
  std::memset(&attr, 0xff, sizeof attr);
  ASSERT_EQ((*loaded)->QueryPort(provider.context(), 2, &attr), 0);
  EXPECT_EQ(attr.lid, 102);
  EXPECT_EQ(attr.port_cap_flags2, 0);
  EXPECT_EQ(attr.link_layer, 0);
}

TEST(LoadIbverbs, TheDataPathIsTheDriversAndItsErrorsArePositive) {
  auto loaded = LoadIbverbs();
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().ToString();
  Provider provider;
  auto& ops = provider.context()->ops;
  ops.post_send = [](ibv_qp*, ibv_send_wr* list, ibv_send_wr** bad) {
    *bad = list->next;
    return -EINVAL;
  };
  ops.post_srq_recv = [](ibv_srq*, ibv_recv_wr* list, ibv_recv_wr** bad) {
    *bad = list;
    return ENOMEM;
  };
  ops.poll_cq = [](ibv_cq*, int entries, ibv_wc* out) {
    out->wr_id = 7;
    return entries - 1;
  };
  ops.req_notify_cq = [](ibv_cq*, int solicited_only) { return solicited_only == 1 ? 0 : EIO; };

  ibv_qp qp{};
  ibv_srq srq{};
  ibv_cq cq{};
  qp.context = srq.context = cq.context = provider.context();
  ibv_send_wr second{};
  ibv_send_wr first{};
  first.next = &second;
  ibv_send_wr* bad_send = nullptr;
  EXPECT_EQ((*loaded)->PostSend(&qp, &first, &bad_send), EINVAL);
  EXPECT_EQ(bad_send, &second);
  ibv_recv_wr receive{};
  ibv_recv_wr* bad_receive = nullptr;
  EXPECT_EQ((*loaded)->PostSrqRecv(&srq, &receive, &bad_receive), ENOMEM);
  EXPECT_EQ(bad_receive, &receive);
  ibv_wc wc{};
  EXPECT_EQ((*loaded)->PollCq(&cq, 3, &wc), 2);
  EXPECT_EQ(wc.wr_id, 7U);
  EXPECT_EQ((*loaded)->ReqNotifyCq(&cq, true), 0);
  EXPECT_EQ((*loaded)->ReqNotifyCq(&cq, false), EIO);
}

}  // namespace
}  // namespace weightcast::drivers
