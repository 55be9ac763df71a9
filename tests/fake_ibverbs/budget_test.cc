#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "fake_ibverbs/end.h"

namespace {
std::atomic<size_t> allocations = 0;
}  // namespace

// Not inlined: gcc would take the pair for a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size); memory != nullptr) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t /*size*/) noexcept { std::free(memory); }

namespace weightcast::fake {
namespace {

/// Writes with an immediate from a to b until `count` have arrived, as fast as the queues take them.
void Stream(End& a, End& b, int count) {
  std::array<ibv_wc, 16> out{};
  auto request = a.To(b, IBV_WR_RDMA_WRITE_WITH_IMM, 100);
  int posted = 0;
  int arrived = 0;
  for (int i = 0; i < 16; ++i) b.PostReceive(1);
  while (arrived < count) {
    while (posted < count && a.Post(request) == 0) ++posted;
    a.verbs->PollCq(a.cq, 16, out.data());
    const int got = b.verbs->PollCq(b.cq, 16, out.data());
    for (int i = 0; i < got; ++i) b.PostReceive(1);
    arrived += got;
  }
}

TEST(Budget, PostingAndPollingAllocateNothing) {
  Fabric fabric;
  End a(fabric.NewHost());
  End b(fabric.NewHost());
  ASSERT_EQ(a.ConnectTo(b, a.qp, b.qp), 0);
  ASSERT_EQ(b.ConnectTo(a, b.qp, a.qp), 0);
  Stream(a, b, 100);
  const size_t before = allocations;
  Stream(a, b, 1000);
  EXPECT_EQ(allocations, before);
}

TEST(Threads, PairsOfThreadsShareAFabric) {
  Fabric fabric({.background = true});
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      End a(fabric.NewHost());
      End b(fabric.NewHost());
      ASSERT_EQ(a.ConnectTo(b, a.qp, b.qp), 0);
      ASSERT_EQ(b.ConnectTo(a, b.qp, a.qp), 0);
      ASSERT_EQ(b.verbs->ReqNotifyCq(b.cq, false), 0);
      Stream(a, b, 500);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace weightcast::fake
