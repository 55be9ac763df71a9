// What an operation on device memory costs the threads that drive progress: this program counts its own
// allocations and locks. Each call of the fake driver takes a lock, so none means no call.
#include <array>
#include <utility>

#include "contract/suite.h"
#include "system/counted.h"

namespace weightcast::transport {
namespace {

constexpr size_t kSize = 1U << 20;
constexpr GrantName kGrant{.slot = 1, .id = 1};

/// Drives both sides and counts until `count` operations of a's have completed and, for `signals`, arrived.
Counted Drive(Pair& pair, size_t count, size_t signals) {
  std::array<Event, 32> events;
  size_t completed = 0;
  size_t arrived = 0;
  const auto limit = Clock::now() + kPatience;
  counted = {.on = true};
  while (completed < count || arrived < signals) {
    for (Side* side : {&pair.a, &pair.b}) {
      const size_t found = side->transport().Progress(events).events;
      for (size_t i = 0; i < found; ++i) {
        if (const auto* done = std::get_if<Completion>(&events[i])) {
          if (done->code != Code::kOk) std::abort();
          ++completed;
        }
        if (std::holds_alternative<SignalArrived>(events[i])) ++arrived;
      }
    }
    if (Clock::now() > limit) std::abort();
  }
  counted.on = false;
  return counted;
}

/// Writes and reads of a's memory at `from` and b's at `to`, many rounds: what the first ones make stays.
void ExpectNoCost(const char* config, TestPlace from, TestPlace to,
                  const TransportFactory& factory = {"shm", &CreateShmTransport}) {
  const Machine machine = std::make_unique<const FakeMachine>(config);
  const DeviceUse use(machine);
  const TestMemory source(kSize, from);
  const TestMemory target(kSize, to);
  Pair pair(factory);
  ASSERT_TRUE(pair.Connect());
  const Described local = pair.a.Register(source, Access::kLocal);
  const RemoteRegion granted = pair.a.Import(Pair::kA, pair.b.Register(target, Access::kGranted));
  const RemoteRegion open = pair.a.Import(Pair::kA, pair.b.Register(target, Access::kReadWrite));
  ASSERT_TRUE(pair.b.transport().OpenGrant(Pair::kB, kGrant, {}).ok());
  // A pull, a push and a read.
  for (const auto& [kind, under_grant] :
       {std::pair(OpKind::kWrite, true), std::pair(OpKind::kWrite, false), std::pair(OpKind::kRead, false)}) {
    std::array<Op, 16> ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      const size_t piece = kSize / ops.size();
      ops[i] = {.kind = kind,
                .has_signal = under_grant,
                .local = local.name.id,
                .local_offset = i * piece,
                .remote = under_grant ? granted : open,
                .remote_offset = i * piece,
                .length = piece,
                .grant = under_grant ? kGrant : GrantName{},
                .signal = {.grant = kGrant, .transfer = 1, .chunk = 0, .chunks = 1}};
    }
    for (int round = 0; round < 40; ++round) {
      counted = {.on = true};
      ASSERT_EQ(pair.a.transport().Post(Pair::kA, 0, ops), ops.size());
      const Counted posting = counted;
      const Counted driving = Drive(pair, ops.size(), under_grant ? ops.size() : 0);
      if (round < 8) continue;  // The first ones make room, map, pin and make the queues.
      ASSERT_EQ(posting.allocations + driving.allocations, 0) << "round " << round;
      ASSERT_EQ(posting.locks + driving.locks, 0) << "round " << round;
    }
  }
}

TEST(PullCostTest, AWriteAndAReadAllocateNothingLockNothingAndCallNothing) {
  ExpectNoCost("", TestPlace::kDevice, TestPlace::kDevice);
}

TEST(StagedCostTest, AWriteAndAReadAllocateNothingLockNothingAndCallNothing) {
  ExpectNoCost("peer=none", TestPlace::kSecluded, TestPlace::kSecluded);
}

TEST(StagedCostTest, NorDoThoseWithADeviceAtOneEnd) {
  ExpectNoCost("peer=none", TestPlace::kPrivate, TestPlace::kSecluded);
  ExpectNoCost("peer=none", TestPlace::kSecluded, TestPlace::kPrivate);
}

TEST(TcpCostTest, AWriteAndAReadAllocateNothingLockNothingAndCallNothing) {
  ExpectNoCost("", TestPlace::kDevice, TestPlace::kDevice, {"tcp", &CreateTcpTransport});
}

}  // namespace
}  // namespace weightcast::transport
