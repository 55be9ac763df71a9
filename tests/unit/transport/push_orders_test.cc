// Every order in which pushed copies and the end of the memory that they write can meet, step by step.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/strings.h"
#include "transport/shm/fence.h"

namespace weightcast::transport::shm {
namespace {

constexpr size_t kCopies = 2;  ///< On two devices: the second may be over first.

/// What somebody forgot. The checker must find each.
enum class PushMistake : uint8_t {
  kNone,
  kBegunAfterTheLook,
  kEndedWhenLeftWithTheDevice,
  kEndedInAnyOrder,
  kBegunReadBeforeClosing,
};

enum class CopyState : uint8_t { kNone, kBegun, kAllowed, kRunning, kOver };

/// A state of all, as plain values.
struct PushWorld {
  bool open = true;
  uint64_t begun = 0;
  uint64_t ended = 0;
  std::array<CopyState, kCopies> copies{};
  std::array<bool, kCopies> told{};  ///< It counts in `ended`.
  size_t closer = 0;                 ///< Steps of the target.
  uint64_t begun_seen = 0;
  bool freed = false;
  std::string trace;
  bool broken = false;  ///< A copy has landed in freed memory.
};

class PushChecker {
 public:
  explicit PushChecker(PushMistake mistake) : mistake_(mistake) {}

  /// Runs all orders from here; the first that breaks the promise is kept.
  void Explore(const PushWorld& world) {
    if (!found_.empty()) return;
    if (world.broken) {
      found_ = world.trace;
      return;
    }
    bool any = false;
    for (size_t step = 0; step < 3 + kCopies; ++step) {
      PushWorld next = world;
      if (!Step(next, step)) continue;
      any = true;
      next.trace += StrCat(" ", step);
      Explore(next);
    }
    if (!any) ++ends_;
    if (!any && !world.freed) stuck_ = world.trace;
  }
  [[nodiscard]] const std::string& found() const { return found_; }
  [[nodiscard]] const std::string& stuck() const { return stuck_; }
  [[nodiscard]] uint64_t ends() const { return ends_; }

 private:
  bool Step(PushWorld& world, size_t step) {
    if (step == 0) return Begin(world);
    if (step == 1) return Tell(world);
    if (step == 2) return Close(world);
    return Land(world, step - 3);
  }

  /// The writer begins one copy after another: three steps each.
  bool Begin(PushWorld& world) {
    size_t at = 0;
    while (at < kCopies && world.copies[at] >= CopyState::kRunning) ++at;
    if (at == kCopies) return false;
    CopyState& copy = world.copies[at];
    const bool late = mistake_ == PushMistake::kBegunAfterTheLook;
    if (copy == CopyState::kNone) {
      if (late && !world.open) return copy = CopyState::kOver, ++world.begun, true;
      if (!late) ++world.begun;
      copy = CopyState::kBegun;
    } else if (copy == CopyState::kBegun) {
      if (late) ++world.begun;
      copy = late || world.open ? CopyState::kAllowed : CopyState::kOver;
    } else {
      copy = CopyState::kRunning;
    }
    return true;
  }

  /// The writer tells of what is over, the oldest first.
  bool Tell(PushWorld& world) {
    for (size_t at = 0; at < kCopies; ++at) {
      if (world.told[at]) continue;
      const bool early =
          mistake_ == PushMistake::kEndedWhenLeftWithTheDevice && world.copies[at] == CopyState::kRunning;
      if (world.copies[at] == CopyState::kOver || early) {
        world.told[at] = true;
        ++world.ended;
        return true;
      }
      if (mistake_ != PushMistake::kEndedInAnyOrder) return false;
    }
    return false;
  }

  /// The target closes, looks what was begun, waits, and frees.
  bool Close(PushWorld& world) {
    const Word ended{world.ended};
    const bool first = (world.closer == 0) == (mistake_ != PushMistake::kBegunReadBeforeClosing);
    if (world.closer < 2) {
      if (first) world.open = false;
      if (!first) world.begun_seen = world.begun;
      ++world.closer;
      return true;
    }
    const Word seen{world.begun_seen};
    if (world.freed || !DeviceFenceWait(seen).Over(ended)) return false;
    world.freed = true;
    return true;
  }

  static bool Land(PushWorld& world, size_t at) {
    if (world.copies[at] != CopyState::kRunning) return false;
    world.copies[at] = CopyState::kOver;
    world.broken = world.freed;
    return true;
  }

  const PushMistake mistake_;
  std::string found_;
  std::string stuck_;
  uint64_t ends_ = 0;
};

TEST(PushOrdersTest, NoCopyLandsInFreedMemoryWhateverTheOrder) {
  PushChecker checker(PushMistake::kNone);
  checker.Explore({});
  EXPECT_EQ(checker.found(), "");
  EXPECT_EQ(checker.stuck(), "") << "the memory is never freed";
  EXPECT_GT(checker.ends(), 100U);
}

TEST(PushOrdersTest, EachMistakeIsFound) {
  for (const PushMistake mistake : {PushMistake::kBegunAfterTheLook, PushMistake::kEndedWhenLeftWithTheDevice,
                                    PushMistake::kEndedInAnyOrder, PushMistake::kBegunReadBeforeClosing}) {
    PushChecker checker(mistake);
    checker.Explore({});
    EXPECT_NE(checker.found(), "") << static_cast<int>(mistake);
  }
}

}  // namespace
}  // namespace weightcast::transport::shm
