#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/fd.h"
#include "fake_ibverbs/end.h"

namespace weightcast::fake {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

void ExpectRefused(Wired& w, End::Request request) {
  ASSERT_EQ(w.a.Post(request), 0);
  ASSERT_EQ(w.a.Write(w.b, 1), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR));
  EXPECT_EQ(w.a.State(), IBV_QPS_ERR);
  EXPECT_EQ(w.b.State(), IBV_QPS_ERR);
  EXPECT_THAT(w.b.Event(), Optional(IBV_EVENT_QP_ACCESS_ERR));
  EXPECT_EQ(w.b.Text(0, 2), "bb");
}

TEST(Protection, AnUnknownKeyBreaksBoth) {
  Wired w;
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 10);
  request.wr.wr.rdma.rkey ^= 1;
  ExpectRefused(w, request);
}

TEST(Protection, OneByteBeyondTheRegionBreaksBoth) {
  Wired w;
  ExpectRefused(w, w.a.To(w.b, IBV_WR_RDMA_WRITE, 10, 65536 - 9));
}

TEST(Protection, TheLastByteIsInside) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 10, 65536 - 10), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
}

TEST(Protection, ARegionForReadingTakesNoWrite) {
  Wired w({.region_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ});
  ExpectRefused(w, w.a.To(w.b, IBV_WR_RDMA_WRITE, 10));
}

TEST(Protection, AQueuePairThatTakesNoWritesTakesNone) {
  Wired w({.qp_access = IBV_ACCESS_REMOTE_READ});
  ExpectRefused(w, w.a.To(w.b, IBV_WR_RDMA_WRITE, 10));
}

TEST(Protection, ARegionOfAnotherDomainIsNotReachable) {
  Wired w;
  ibv_pd* other = w.b.verbs->AllocPd(w.b.context);
  ibv_mr* mr = w.b.verbs->RegMr(other, w.b.memory.data(), 100, w.b.options.region_access);
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 10);
  request.wr.wr.rdma.rkey = mr->rkey;
  ExpectRefused(w, request);
  EXPECT_EQ(w.b.verbs->DeallocPd(other), EBUSY);
  EXPECT_EQ(w.b.verbs->DeregMr(mr), 0);
  EXPECT_EQ(w.b.verbs->DeallocPd(other), 0);
}

TEST(Protection, AWrongLocalKeyBreaksOnlyTheSender) {
  Wired w;
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 10);
  request.sge.lkey += 1;
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_LOC_PROT_ERR));
  EXPECT_EQ(w.a.State(), IBV_QPS_ERR);
  EXPECT_EQ(w.b.State(), IBV_QPS_RTS);
}

TEST(Protection, AReceiveThatIsTooShortBreaksBoth) {
  Wired w;
  ASSERT_EQ(w.b.PostReceive(1, 0, 9), 0);
  auto request = w.a.To(w.b, IBV_WR_SEND, 10);
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_REM_INV_REQ_ERR));
  EXPECT_THAT(w.b.Statuses(), ElementsAre(IBV_WC_LOC_LEN_ERR));
  EXPECT_EQ(w.b.State(), IBV_QPS_ERR);
}

TEST(Protection, AFailedCompletionSaysNoMoreThanTheManual) {
  Wired w;
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 10);
  request.wr.send_flags = 0;
  request.wr.wr.rdma.rkey = 0;
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  const auto done = w.a.Poll();
  ASSERT_EQ(done.size(), 1U) << "a failure is told, signalled or not";
  EXPECT_EQ(done[0].wr_id, 10U);
  EXPECT_NE(done[0].opcode, IBV_WC_RDMA_WRITE);
}

TEST(Protection, NothingLandsAfterDeregistering) {
  Wired w;
  ASSERT_EQ(w.a.Write(w.b, 10), 0);
  ASSERT_EQ(w.b.verbs->DeregMr(w.b.mr), 0);
  w.b.mr = nullptr;
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_REM_ACCESS_ERR));
  EXPECT_EQ(w.b.Text(0, 1), "b");
}

TEST(Protection, AKeyUsedAgainIsAnother) {
  Wired w;
  const uint32_t old = w.b.mr->rkey;
  ASSERT_EQ(w.b.verbs->DeregMr(w.b.mr), 0);
  w.b.mr = w.b.verbs->RegMr(w.b.pd, w.b.memory.data(), 65536, w.b.options.region_access);
  EXPECT_NE(w.b.mr->rkey, old);
  EXPECT_EQ(w.b.mr->rkey >> 8, old >> 8);
}

TEST(Protection, RegistrationIsChecked) {
  Fabric fabric;
  HostConfig config;
  config.devices[0].max_mr_size = 65536;
  config.devices[0].max_mr = 2;
  End end(fabric.NewHost(config));
  std::vector<char> bytes(65537);
  const auto error = [&](size_t length, int access) {
    return end.verbs->RegMr(end.pd, bytes.data(), length, access) == nullptr ? errno : 0;
  };
  EXPECT_EQ(error(0, 0), EINVAL);
  EXPECT_EQ(error(65537, 0), EINVAL);
  EXPECT_EQ(error(1, IBV_ACCESS_REMOTE_WRITE), EINVAL) << "remote write asks for local write";
  EXPECT_EQ(error(1, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
  EXPECT_EQ(end.verbs->RegMr(end.pd, reinterpret_cast<void*>(4096), 1, 0), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ibv_mr* relaxed = end.verbs->RegMr(end.pd, bytes.data(), 1, IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(relaxed, nullptr);
  EXPECT_EQ(error(1, 0), ENOMEM);
  EXPECT_EQ(end.verbs->DeregMr(relaxed), 0);
  EXPECT_EQ(end.verbs->RegDmabufMr(end.pd, 0, 1, 0, 0, 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST(Protection, ADmabufIsReachedByItsIova) {
  HostConfig config;
  config.devices[0].dmabuf = true;
  Wired w({}, config);
  const UniqueFd file(memfd_create("dmabuf", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  constexpr uint64_t kIova = 0x7000'0000'0010;
  ibv_mr* mr = w.b.verbs->RegDmabufMr(w.b.pd, 4096 + 16, 100, kIova, file.get(), w.b.options.region_access);
  ASSERT_NE(mr, nullptr);
  auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 3);
  request.wr.wr.rdma = {kIova + 1, mr->rkey};
  ASSERT_EQ(w.a.Post(request), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
  std::array<char, 5> got{};
  ASSERT_EQ(pread(file.get(), got.data(), got.size(), 4096 + 16), 5);
  EXPECT_EQ(std::string(got.data(), 5), std::string("\0aaa\0", 5));
  EXPECT_EQ(w.b.verbs->DeregMr(mr), 0);
}

/// As device memory: there, and nothing for the processor.
TEST(Protection, MemoryThatTheProcessorCannotReachNeedsAModuleThatKnowsIt) {
  const UniqueFd file(memfd_create("device", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  void* const address = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (const bool knows : {false, true}) {
    HostConfig config;
    size_t asked = 0;
    if (knows) {
      config.devices[0].peermem = [&](uint64_t at, size_t length) {
        EXPECT_EQ(at, reinterpret_cast<uint64_t>(address) + 16);
        asked = length;
        return dup(file.get());
      };
    }
    Wired w({}, config);
    ibv_mr* const mr =
        w.b.verbs->RegMr(w.b.pd, static_cast<char*>(address) + 16, 100, w.b.options.region_access);
    if (!knows) {
      EXPECT_EQ(mr, nullptr);
      EXPECT_EQ(errno, EFAULT);
      continue;
    }
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(asked, 100U);
    auto request = w.a.To(w.b, IBV_WR_RDMA_WRITE, 3);
    request.wr.wr.rdma = {reinterpret_cast<uint64_t>(address) + 17, mr->rkey};
    ASSERT_EQ(w.a.Post(request), 0);
    w.fabric.Run();
    EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_SUCCESS));
    std::array<char, 5> got{};
    ASSERT_EQ(pread(file.get(), got.data(), got.size(), 16), 5);
    EXPECT_EQ(std::string(got.data(), 5), std::string("\0aaa\0", 5));
    EXPECT_EQ(w.b.verbs->DeregMr(mr), 0);
  }
  munmap(address, 8192);
}

TEST(Protection, ObjectsInUseStay) {
  Wired w;
  drivers::Ibverbs& verbs = *w.a.verbs;
  EXPECT_EQ(verbs.DestroyCq(w.a.cq), EBUSY);
  EXPECT_EQ(verbs.DestroySrq(w.a.srq), EBUSY);
  EXPECT_EQ(verbs.DestroyCompChannel(w.a.channel), EBUSY);
  EXPECT_EQ(verbs.DeallocPd(w.a.pd), EBUSY);
  EXPECT_EQ(verbs.CloseDevice(w.a.context), EBUSY);
}

TEST(Protection, LimitsHold) {
  HostConfig config;
  config.devices[0].max_qp = 1;
  config.devices[0].max_qp_wr = 16;
  config.devices[0].max_cqe = 64;
  config.devices[0].max_srq_wr = 16;
  config.devices[0].max_inline = 64;
  config.devices[0].max_sge = 2;
  config.devices[0].max_msg_sz = 1000;
  Wired w({}, config);
  EXPECT_EQ(w.a.NewQp(), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(w.a.verbs->CreateCq(w.a.context, 65, nullptr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_srq_init_attr srq{};
  srq.attr = {.max_wr = 17, .max_sge = 1, .srq_limit = 0};
  EXPECT_EQ(w.a.verbs->CreateSrq(w.a.pd, &srq), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = w.a.cq;
  attr.qp_type = IBV_QPT_RC;
  const ibv_qp_cap good{
      .max_send_wr = 16, .max_recv_wr = 0, .max_send_sge = 2, .max_recv_sge = 0, .max_inline_data = 64};
  for (auto spoil :
       {+[](ibv_qp_cap& cap) { cap.max_send_wr = 17; }, +[](ibv_qp_cap& cap) { cap.max_send_sge = 3; },
        +[](ibv_qp_cap& cap) { cap.max_inline_data = 65; }}) {
    attr.cap = good;
    spoil(attr.cap);
    EXPECT_EQ(w.a.verbs->CreateQp(w.a.pd, &attr), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  ASSERT_EQ(w.a.Write(w.b, 1001), 0);
  w.fabric.Run();
  EXPECT_THAT(w.a.Statuses(), ElementsAre(IBV_WC_LOC_LEN_ERR));
}

TEST(Protection, ADeviceMayGrantMoreThanWasAsked) {
  Fabric fabric;
  HostConfig config;
  config.devices[0].rounds_up = true;
  End end(fabric.NewHost(config));
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(end.verbs->QueryQp(end.qp, &attr, IBV_QP_CAP, &init), 0);
  EXPECT_EQ(init.cap.max_send_wr, 31U);
}

}  // namespace
}  // namespace weightcast::fake
