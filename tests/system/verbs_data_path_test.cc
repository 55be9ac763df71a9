#include <array>

#include "system/counted.h"
#include "unit/transport/verbs_world.h"

// What the verbs transport costs besides moving bytes. The network inside the test has one lock for all,
// which is not counted; that it allocates nothing on its data path is its own test's matter.

namespace weightcast::transport::verbs {
namespace {

class VerbsDataPathTest : public VerbsPairTest {
 protected:
  static constexpr uint32_t kBatch = 64;

  /// `rounds` of a batch posted and driven to its end. Counts what that allocates and locks.
  void Write(uint64_t length, bool signalled, uint32_t chunks, int rounds) {
    std::array<Op, kBatch> ops;
    for (uint32_t i = 0; i < kBatch; ++i) {
      const Signal signal{.grant = {}, .transfer = i, .chunk = 0, .chunks = chunks, .checksum = 0};
      ops[i] = signalled ? SignalledWriteOf(a, remote, i * 512, length, signal)
                         : WriteOf(a, remote, i * 512, length);
    }
    std::array<Event, kBatch> events;
    counted.on = true;
    for (int round = 0; round < rounds; ++round) {
      uint32_t posted = 0;
      uint32_t done = 0;
      uint32_t arrived = 0;
      while (done < kBatch || arrived < (signalled ? kBatch : 0)) {
        const std::span<const Op> rest(ops.data() + posted, kBatch - posted);
        if (!rest.empty()) {
          posted += static_cast<uint32_t>(a.side->transport().Post(Pair::kA, round % 4, rest));
        }
        world.fabric.Advance(World::kTurn);
        done += static_cast<uint32_t>(a.side->transport().Progress(events).events);
        arrived += static_cast<uint32_t>(b.side->transport().Progress(events).events);
      }
    }
    counted.on = false;
  }
};

TEST_F(VerbsDataPathTest, AllocatesNothingAndTakesNoLock) {
  Join(Nics(2));
  (void)world.fabric.Now();
  const void* const fabric_lock = counted.last_lock;
  for (const uint64_t length : {uint64_t{8}, uint64_t{512}}) {
    for (const auto& [signalled, chunks] : {std::pair{false, 1U}, {true, 1U}, {true, 2U}}) {
      Write(length, signalled, chunks, 100);  // The first ones make room.
      counted = {.uncounted_lock = fabric_lock};
      Write(length, signalled, chunks, 100);
      EXPECT_EQ(counted.allocations, 0) << length << (signalled ? " signalled " : " plain ") << chunks;
      EXPECT_EQ(counted.locks, 0) << length << (signalled ? " signalled " : " plain ") << chunks;
    }
  }
}

}  // namespace
}  // namespace weightcast::transport::verbs
