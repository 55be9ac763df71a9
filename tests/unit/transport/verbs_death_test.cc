#include <algorithm>
#include <random>

#include "unit/transport/verbs_world.h"

// Peers that die and cables that are cut, in the middle of traffic. The network's time is virtual.

namespace weightcast::transport::verbs {
namespace {

/// Within half a lease an error is at the caller: docs/verbs.md.
constexpr fake::Duration kLimit = World::kLease / 2 + 4 * World::kTurn;
constexpr uint64_t kPiece = 512;
constexpr int kTimes = 1000;

/// What one side has posted over the link, at distinct places.
struct Posted {
  std::vector<uint64_t> cookies;
  uint64_t next = 0;
  bool Torn(const Side& side) const {
    const auto failed = std::ranges::count_if(
        cookies, [&](uint64_t cookie) { return side.completions.at(cookie).code != Code::kOk; });
    return failed > 0 && failed < std::ssize(cookies);
  }
};

/// Writes of one piece each over both lanes, as many as the draw says.
void PostSome(Node& from, LinkId link, RemoteRegion to, Posted& posted, uint32_t count) {
  for (uint32_t i = 0; i < count && (posted.next + 1) * kPiece <= from.memory->bytes().size(); ++i) {
    std::vector<Op> ops{WriteOf(from, to, posted.next * kPiece, kPiece)};
    if (from.side->TryPost(link, i % 2, ops) == 0) continue;
    ++posted.next;
    posted.cookies.push_back(ops[0].cookie);
  }
}

/// What the completions say is true: all of what is ok has landed.
void ExpectTruth(const Node& from, const Node& to, const Posted& posted) {
  for (size_t i = 0; i < posted.cookies.size(); ++i) {
    ASSERT_TRUE(from.side->Completed(posted.cookies[i]));
    const Completion& done = from.side->completions.at(posted.cookies[i]);
    const auto there = to.memory->bytes().subspan(i * kPiece, kPiece);
    const bool landed = SameBytes(there, from.memory->bytes().subspan(i * kPiece, kPiece));
    if (done.code == Code::kOk) {
      ASSERT_TRUE(landed) << i;
    } else {
      ASSERT_EQ(done.code, Code::kUnavailable);
    }
  }
}

struct Draws {
  explicit Draws(uint64_t seed) : random(seed) {}
  uint32_t Below(uint32_t limit) { return static_cast<uint32_t>(random() % limit); }
  std::mt19937_64 random;
};

TEST(VerbsDeathTest, APeerThatDiesIsAnErrorInTimeAndItsSuccessorIsServed) {
  World world;
  world.fabric.SetDelay(5us, 50us);
  world.fabric.Shuffle(true);
  Node a = world.Start(Nics(2));
  a.memory->Fill(1);
  const fake::Counters before = world.fabric.CountersOf(*a.host, 0);
  int in_the_middle = 0;
  for (int i = 0; i < kTimes; ++i) {
    SCOPED_TRACE(i);
    Draws draws(static_cast<uint64_t>(i));
    Node b = world.Start(Nics(1 + i % 2));
    ASSERT_TRUE(world.Connect(a, b));
    const RemoteRegion remote = a.side->Import(Pair::kA, b.region);
    Posted posted;
    PostSome(a, Pair::kA, remote, posted, 1 + draws.Below(60));
    world.fabric.Advance(std::chrono::microseconds(draws.Below(400)));
    for (uint32_t turns = draws.Below(3); turns > 0; --turns) a.side->Pump();
    world.fabric.Kill(*b.host);
    b.side.reset();
    PostSome(a, Pair::kA, remote, posted, 2 + draws.Below(10));
    const fake::Duration died = world.fabric.Now();
    ASSERT_TRUE(world.Until({a.side.get()}, [&] { return a.side->down.contains(Pair::kA); }));
    ASSERT_LE(world.fabric.Now() - died, kLimit);
    ASSERT_EQ(a.side->pending(), 0U) << "down, and something has not completed";
    ExpectTruth(a, b, posted);
    if (posted.Torn(*a.side)) ++in_the_middle;
    ASSERT_TRUE(world.Close(a, Pair::kA));
    a.side->Forget();
  }
  EXPECT_GT(in_the_middle, kTimes / 2);
  const fake::Counters after = world.fabric.CountersOf(*a.host, 0);
  EXPECT_EQ(after.qps, before.qps);
  EXPECT_EQ(after.mrs, before.mrs);
}

TEST(VerbsDeathTest, ACutCableIsAnErrorInTimeOnBothSidesAndMendsWithANewLink) {
  World world;
  world.fabric.SetDelay(5us, 50us);
  Node a = world.Start(Nics(2));
  Node b = world.Start(Nics(2));
  a.memory->Fill(1);
  b.memory->Fill(2);
  // Each writes to the other's second region, so that what arrives does not change what is sent.
  const TestMemory target_a(64 << 10, false);
  const TestMemory target_b(64 << 10, false);
  const Described region_a = a.side->Register(target_a, Access::kReadWrite);
  const Described region_b = b.side->Register(target_b, Access::kReadWrite);
  for (int i = 0; i < kTimes; ++i) {
    SCOPED_TRACE(i);
    Draws draws(static_cast<uint64_t>(i) + 7777);
    ASSERT_TRUE(world.Connect(a, b));
    Posted from_a;
    Posted from_b;
    const RemoteRegion to_b = a.side->Import(Pair::kA, region_b);
    const RemoteRegion to_a = b.side->Import(Pair::kB, region_a);
    PostSome(a, Pair::kA, to_b, from_a, 1 + draws.Below(40));
    PostSome(b, Pair::kB, to_a, from_b, 1 + draws.Below(40));
    world.fabric.Advance(std::chrono::microseconds(draws.Below(300)));
    for (const int nic : {0, 1}) world.fabric.SetLink(*(i % 2 == 0 ? a : b).host, nic, fake::Link::kCut);
    PostSome(a, Pair::kA, to_b, from_a, 2);
    PostSome(b, Pair::kB, to_a, from_b, 2);
    const fake::Duration cut = world.fabric.Now();
    ASSERT_TRUE(world.Until({a.side.get(), b.side.get()}, [&] {
      return a.side->down.contains(Pair::kA) && b.side->down.contains(Pair::kB);
    }));
    ASSERT_LE(world.fabric.Now() - cut, kLimit);
    ASSERT_EQ(a.side->pending() + b.side->pending(), 0U);
    for (const int nic : {0, 1}) world.fabric.SetLink(*(i % 2 == 0 ? a : b).host, nic, fake::Link::kUp);
    ASSERT_TRUE(world.Close(a, Pair::kA));
    ASSERT_TRUE(world.Close(b, Pair::kB));
    a.side->Forget();
    b.side->Forget();
  }
}

/// More rails do not make it later: all are tried at once.
TEST(VerbsDeathTest, ManyNicsDoNotMakeADeathLate) {
  World world;
  Node a = world.Start(Nics(8));
  Node b = world.Start(Nics(8));
  ASSERT_TRUE(world.Connect(a, b));
  const RemoteRegion remote = a.side->Import(Pair::kA, b.region);
  world.fabric.Kill(*b.host);
  b.side.reset();
  Posted posted;
  PostSome(a, Pair::kA, remote, posted, 1);
  const fake::Duration died = world.fabric.Now();
  ASSERT_TRUE(world.Until({a.side.get()}, [&] { return a.side->down.contains(Pair::kA); }));
  EXPECT_LE(world.fabric.Now() - died, kLimit);
}

}  // namespace
}  // namespace weightcast::transport::verbs
