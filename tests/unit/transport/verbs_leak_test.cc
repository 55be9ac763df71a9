#include "unit/transport/verbs_world.h"

// Everything that is taken from a device is given back.

namespace weightcast::transport::verbs {
namespace {

bool SameAlive(const fake::Counters& x, const fake::Counters& y) {
  return x.contexts == y.contexts && x.pds == y.pds && x.mrs == y.mrs && x.channels == y.channels &&
         x.cqs == y.cqs && x.srqs == y.srqs && x.qps == y.qps;
}

TEST(VerbsLeakTest, TwoHundredLinksLeaveNothing) {
  World world;
  Node a = world.Start(Nics(2));
  Node b = world.Start(Nics(2));
  const auto alive = [&](const Node& node, int device) {
    return world.fabric.CountersOf(*node.host, device);
  };
  const fake::Counters before_a = alive(a, 0);
  const fake::Counters before_b = alive(b, 1);
  ASSERT_EQ(before_a.qps, 0);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(i);
    const TestMemory memory(4096, false);
    const Described region = b.side->Register(memory, Access::kReadWrite);
    ASSERT_TRUE(world.Connect(a, b));
    const RemoteRegion remote = a.side->Import(Pair::kA, region);
    std::vector<Op> ops(10, WriteOf(a, remote, 0, 64));
    ASSERT_EQ(a.side->TryPost(Pair::kA, static_cast<uint32_t>(i) % 4, ops), ops.size());
    // Some close while operations are under way, some without hearing of each other, some after a break.
    if (i % 4 == 1) world.fabric.SetLink(*b.host, 0, fake::Link::kCut);
    if (i % 4 == 2) world.fabric.Inject(*a.host, 1, IBV_EVENT_QP_FATAL);
    if (i % 4 == 3) {
      ASSERT_TRUE(world.Until({a.side.get(), b.side.get()}, [&] { return a.side->pending() == 0; }));
    }
    b.side->transport().Deregister(region.name.id);
    a.side->transport().CloseLink(Pair::kA);
    if (i % 3 == 0) a.side->Pump();
    b.side->transport().CloseLink(Pair::kB);
    ASSERT_TRUE(world.Until({a.side.get(), b.side.get()}, [&] {
      return a.side->closed.contains(Pair::kA) && b.side->closed.contains(Pair::kB) &&
             b.side->deregistered.contains(region.name.id);
    }));
    world.fabric.SetLink(*b.host, 0, fake::Link::kUp);
    // Graceful shutdowns are over, at the latest after a second.
    ASSERT_TRUE(world.Until({a.side.get(), b.side.get()}, [&] {
      return SameAlive(alive(a, 0), before_a) && SameAlive(alive(b, 1), before_b);
    }));
    a.side->Forget();
  }
  a.side.reset();
  b.side.reset();
  for (const Node* node : {&a, &b}) {
    for (const int device : {0, 1}) EXPECT_TRUE(SameAlive(alive(*node, device), {}));
  }
}

/// With everything open: links, grants, imports, operations under way.
TEST(VerbsLeakTest, ATransportThatGoesInTheMiddleLeavesNothing) {
  World world;
  Node a = world.Start(Nics(2));
  Node b = world.Start(Nics(2));
  ASSERT_TRUE(world.Connect(a, b));
  const RemoteRegion remote = a.side->Import(Pair::kA, b.region);
  ASSERT_TRUE(b.side->transport().OpenGrant(Pair::kB, {.slot = 1, .id = 1}, {}).ok());
  std::vector<Op> ops(50, WriteOf(a, remote, 0, 64));
  ASSERT_EQ(a.side->TryPost(Pair::kA, 0, ops), ops.size());
  b.side->transport().Revoke(Pair::kB, {.slot = 1, .id = 1});
  a.side.reset();
  b.side.reset();
  for (const Node* node : {&a, &b}) {
    for (const int device : {0, 1}) {
      EXPECT_TRUE(SameAlive(world.fabric.CountersOf(*node->host, device), {}));
    }
  }
}

}  // namespace
}  // namespace weightcast::transport::verbs
