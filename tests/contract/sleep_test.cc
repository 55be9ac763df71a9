// Sleeping on the descriptor: nothing that happens is slept through, and nothing wakes an idle one.
#include <poll.h>

#include <atomic>
#include <thread>

#include "contract/suite.h"

namespace weightcast::transport {
namespace {

/// Sleeps until the transport wants Progress; false: not within the limit.
bool Sleep(Side& side, int limit_ms = 20'000) {
  if (!side.transport().Arm()) return true;
  pollfd entry{.fd = side.transport().fd(), .events = POLLIN, .revents = 0};
  const int count = poll(&entry, 1, limit_ms);
  side.transport().Disarm();
  return count > 0;
}

/// Pumps and sleeps, never spins, until `done`; false: a wake-up was lost.
bool SleepUntil(Side& side, const std::function<bool()>& done) {
  while (!done()) {
    if (side.Pump() == 0 && !done() && !Sleep(side)) return false;
  }
  return true;
}

class SleepTest : public PairTest {
 protected:
  static constexpr GrantName kGrant{.slot = 1, .id = 1};
  struct Station {
    Described local;
    RemoteRegion remote{};
  };
  Op Message(const Station& station, uint32_t number, uint64_t length) {
    return {.kind = OpKind::kWrite,
            .has_signal = true,
            .local = station.local.name.id,
            .remote = station.remote,
            .length = length,
            .grant = kGrant,
            .signal = {.grant = kGrant, .transfer = 1, .chunk = number, .chunks = 1U << 30}};
  }
  void MapBothWays() {
    a.partner = b.partner = nullptr;  // Each is driven by a thread of its own.
    at_a = {a.Register(memory_a, Access::kGranted), {}};
    at_b = {b.Register(memory_b, Access::kGranted), {}};
    at_a.remote = a.Import(Pair::kA, at_b.local);
    at_b.remote = b.Import(Pair::kB, at_a.local);
    ASSERT_TRUE(a.transport().OpenGrant(Pair::kA, kGrant, {}).ok());
    ASSERT_TRUE(b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  }
  TestMemory memory_a = NewMemory(1U << 20);
  TestMemory memory_b = NewMemory(1U << 20);
  Station at_a, at_b;
};

TEST_P(SleepTest, PingPongWithBothAsleepLosesNoWakeUp) {
  MapBothWays();
  // The fake's device is a process, and wakes once a copy; each side sleeps through its device's copies as
  // well.
  const uint32_t rounds = GetParam().on_device() ? 200 : 2000;
  std::atomic<bool> lost = false;
  std::thread other([&] {
    for (uint32_t round = 0; round < rounds && !lost; ++round) {
      if (!SleepUntil(b, [&] { return b.signals.size() > round; })) lost = true;
      b.Post(Pair::kB, 0, Message(at_b, round, 8));
    }
    if (!SleepUntil(b, [&] { return b.pending() == 0; })) lost = true;
  });
  for (uint32_t round = 0; round < rounds && !lost; ++round) {
    a.Post(Pair::kA, 0, Message(at_a, round, 8));
    if (!SleepUntil(a, [&] { return a.signals.size() > round; })) lost = true;
  }
  if (!SleepUntil(a, [&] { return a.pending() == 0; })) lost = true;
  other.join();
  EXPECT_FALSE(lost);
}

TEST_P(SleepTest, AStreamWithBothAsleepEnds) {
  MapBothWays();
  constexpr uint32_t kCount = 200;
  std::atomic<bool> lost = false;
  std::thread other([&] {
    if (!SleepUntil(b, [&] { return b.signals.size() == kCount; })) lost = true;
  });
  for (uint32_t i = 0; i < kCount && !lost; ++i) {
    std::vector<Op> ops{Message(at_a, i, 1U << 20)};
    // Full: sleep until something completes, as a caller without anything else to do does.
    while (a.TryPost(Pair::kA, 0, ops) == 0 && !lost) {
      const size_t before = a.completions.size();
      if (!SleepUntil(a, [&] { return a.completions.size() > before; })) lost = true;
    }
  }
  if (!SleepUntil(a, [&] { return a.pending() == 0; })) lost = true;
  other.join();
  EXPECT_FALSE(lost);
}

TEST_P(SleepTest, AnIdleTransportStaysAsleep) {
  MapBothWays();
  a.Post(Pair::kA, 0, Message(at_a, 0, 64));
  ASSERT_TRUE(pair.Until([&] { return a.pending() == 0 && b.signals.size() == 1; }));
  // What was under way may wake each a few times; then it must be over.
  for (Side* side : {&a, &b}) {
    int wakes = 0;
    while (wakes < 20 && Sleep(*side, 100)) {
      side->Pump();
      ++wakes;
    }
    EXPECT_LT(wakes, 20);
  }
}

TEST_P(SleepTest, AnotherThreadsDeregisterWakesTheSleeper) {
  MapBothWays();
  std::atomic<bool> lost = false;
  for (uint32_t round = 0; round < 50 && !lost; ++round) {
    const TestMemory memory = NewMemory(4096);
    const Described region = b.RegisterAs(500, 1000 + round, memory, Access::kReadWrite);
    std::thread sleeper([&] {
      if (!SleepUntil(b, [&] { return b.deregistered.contains(500); })) lost = true;
    });
    b.transport().Deregister(region.name.id);
    sleeper.join();
  }
  EXPECT_FALSE(lost);
}

TEST_P(SleepTest, ConnectingAsleepBothWays) {
  Pair other(factory());
  std::atomic<bool> lost = false;
  const auto deadline = Clock::now() + kPatience;
  const auto offer = other.a.transport().OpenLink(Pair::kA, Role::kInitiator, other.b.self(), "", deadline);
  ASSERT_TRUE(offer.ok());
  const auto answer =
      other.b.transport().OpenLink(Pair::kB, Role::kResponder, other.a.self(), *offer, deadline);
  ASSERT_TRUE(answer.ok());
  std::thread responder([&] {
    if (!SleepUntil(other.b, [&] { return other.b.ready.contains(Pair::kB); })) lost = true;
  });
  EXPECT_TRUE(other.a.transport().Establish(Pair::kA, *answer).ok());
  if (!SleepUntil(other.a, [&] { return other.a.ready.contains(Pair::kA); })) lost = true;
  responder.join();
  EXPECT_FALSE(lost);
}

TEST_P(SleepTest, ADeadlineWakesTheSleeper) {
  const LinkId link{70};
  ASSERT_TRUE(
      a.transport()
          .OpenLink(link, Role::kInitiator, b.self(), "", Clock::now() + std::chrono::milliseconds(100))
          .ok());
  EXPECT_TRUE(SleepUntil(a, [&] { return a.down.contains(link); }));
}

WC_CONTRACT(SleepTest);

}  // namespace
}  // namespace weightcast::transport
