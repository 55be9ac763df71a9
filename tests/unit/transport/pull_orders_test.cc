// Every order in which a pull, its writer and a revoke can meet, step by step.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "transport/shm/pull_checks.h"

namespace weightcast::transport::shm {
namespace {

constexpr size_t kPieces = 3;
constexpr uint64_t kPullersGrant = 1;
constexpr uint64_t kNextGrant = 2;
constexpr uint32_t kGeneration = 1;

/// What a piece of memory holds.
enum class PulledBytes : uint8_t { kNone, kPromised, kChanged, kUsers };
using PulledMemory = std::array<PulledBytes, kPieces>;

constexpr PulledMemory All(PulledBytes bytes) { return {bytes, bytes, bytes}; }

/// What somebody forgot. The checker must find each.
enum class PullMistake : uint8_t {
  kNone,
  kNoFirstCheck,
  kNoSecondCheck,
  kGenerationIgnored,
  kGrantNotAsked,
  kRevokedBeforeOwnCopies,
  kChangedBeforeClosed,
};

/// A state of all three, as plain values. Each actor runs its own steps in order.
struct PullWorld {
  // Written by the writer.
  uint64_t open = kSourcesOpen;
  uint32_t generation = kGeneration;
  PulledMemory source = All(PulledBytes::kPromised);
  bool freed = false;  ///< The source's memory was given back when it was closed.
  // The target's.
  uint64_t grant = kPullersGrant;
  PulledMemory target = All(PulledBytes::kNone);
  uint64_t begun = 0;
  uint64_t over = 0;
  bool stood = false;  ///< At check 2.
  bool revoked = false;
  uint64_t fence = 0;      ///< The newest copy when the grant was closed, as Engines::Fence takes it.
  uint64_t signalled = 0;  ///< Under which grant.
  // How far each is.
  size_t puller = 0;
  size_t writer = 0;
  size_t revoker = 0;
  std::string trace;
  std::string broken;  ///< Which promise, and how.
};

class PullChecker {
 public:
  explicit PullChecker(PullMistake mistake) : mistake_(mistake) {}

  /// Runs all orders from here. Ends at the first broken promise.
  void Explore(const PullWorld& world) {
    if (!found_.empty()) return;
    bool any = false;
    for (const auto step : {&PullChecker::StepPuller, &PullChecker::StepWriter, &PullChecker::StepRevoker}) {
      PullWorld next = world;
      if (!(this->*step)(next)) continue;
      any = true;
      Check(next);
      if (!next.broken.empty()) {
        found_ = StrCat(next.broken, ":", next.trace);
        return;
      }
      Explore(next);
    }
    if (any) return;
    ++orders_;
    signalled_ += world.signalled == kPullersGrant ? 1 : 0;
    if (world.revoker < 3) found_ = StrCat("the revoke never ends:", world.trace);
  }

  [[nodiscard]] const std::string& found() const { return found_; }
  [[nodiscard]] uint64_t orders() const { return orders_; }
  [[nodiscard]] uint64_t signalled() const { return signalled_; }

 private:
  [[nodiscard]] bool Stands(const PullWorld& world) const {
    const Word open{world.open};
    const std::atomic<uint32_t> generation{world.generation};
    const bool ignored = mistake_ == PullMistake::kGenerationIgnored;
    return SourceStands(open, generation, ignored ? world.generation : kGeneration);
  }

  /// Check 1, the pieces, check 2, the signal. False: there is no step to run.
  bool StepPuller(PullWorld& world) {
    constexpr size_t kCheck2 = kPieces + 1;
    constexpr size_t kSignal = kPieces + 2;
    const size_t step = world.puller;
    if (step > kSignal) return false;
    ++world.puller;
    if (step == 0) {
      world.trace += " check1";
      const bool stands = Stands(world) || mistake_ == PullMistake::kNoFirstCheck;
      if (world.grant != kPullersGrant || !stands)
        world.puller = kSignal + 1;  // Refused: nothing is begun.
      else
        world.begun = 1;
      if (world.begun == 1 && world.freed) world.broken = "a copy is begun from memory that was given back";
    } else if (step <= kPieces) {
      world.trace += StrCat(" piece", step);
      world.target[step - 1] = world.source[step - 1];
      if (world.revoked) world.broken = "a piece lands after the revoke was over";
      if (step == kPieces) world.over = 1;
    } else if (step == kCheck2) {
      world.trace += " check2";
      world.stood = Stands(world) || mistake_ == PullMistake::kNoSecondCheck;
    } else {
      world.trace += " signal";
      if (!world.stood || world.grant == 0) return true;
      if (world.grant == kPullersGrant || mistake_ == PullMistake::kGrantNotAsked)
        world.signalled = world.grant;
    }
    return true;
  }

  /// Clears its word, changes the source, offers it again under a new generation.
  bool StepWriter(PullWorld& world) {
    const bool early = mistake_ == PullMistake::kChangedBeforeClosed;
    const auto close = [&] {
      world.trace += " close";
      Word open{world.open};
      CloseSource(open);
      world.open = open.load();
      world.freed = true;
    };
    const auto change = [&] {
      world.trace += " change";
      world.source = All(PulledBytes::kChanged);
    };
    switch (world.writer++) {
      case 0:
        early ? change() : close();
        return true;
      case 1:
        early ? close() : change();
        return true;
      case 2:
        world.trace += " offer";
        world.generation = kGeneration + 1;
        world.open = kSourcesOpen;
        world.freed = false;
        return true;
      default:
        world.writer = 3;
        return false;
    }
  }

  /// Closes the grant, has the memory back when the fence is over, opens the slot again for another grant.
  bool StepRevoker(PullWorld& world) {
    switch (world.revoker) {
      case 0:
        world.trace += " revoke";
        world.grant = 0;
        world.fence = world.begun;
        break;
      case 1:
        if (world.over < world.fence && mistake_ != PullMistake::kRevokedBeforeOwnCopies) return false;
        world.trace += " revoked";
        world.revoked = true;
        world.target = All(PulledBytes::kUsers);
        break;
      case 2:
        world.trace += " reopen";
        world.grant = kNextGrant;
        break;
      default:
        return false;
    }
    ++world.revoker;
    return true;
  }

  static void Check(PullWorld& world) {
    if (!world.broken.empty() || world.signalled == 0) return;
    if (world.signalled != kPullersGrant) {
      world.broken = "a signal counts for another grant";
    } else if (!world.revoked && world.target != All(PulledBytes::kPromised)) {
      world.broken = "bytes are signalled that the writer did not promise";
    }
  }

  const PullMistake mistake_;
  std::string found_;
  uint64_t orders_ = 0;
  uint64_t signalled_ = 0;
};

TEST(PullOrdersTest, NoOrderBreaksAPromise) {
  PullChecker checker(PullMistake::kNone);
  checker.Explore(PullWorld{});
  EXPECT_EQ(checker.found(), "");
  // All there are. The first check passes only where it comes first; then the writer's 3 steps may fall
  // anywhere among 8 others, of whose 56 orders 28 keep the end of the revoke behind the last piece: 165
  // * 28. Elsewhere the pull is refused and has that one step: 7 * 20 orders of all, less the 20 where it
  // comes first.
  EXPECT_EQ(checker.orders(), 165U * 28 + 120);
  EXPECT_GT(checker.signalled(), 0U);
  EXPECT_LT(checker.signalled(), checker.orders());
}

struct Planted {
  const char* name;
  PullMistake mistake;
  const char* broken;
};
void PrintTo(const Planted& planted, std::ostream* out) { *out << planted.name; }
class PlantedPullTest : public ::testing::TestWithParam<Planted> {};

TEST_P(PlantedPullTest, IsFound) {
  PullChecker checker(GetParam().mistake);
  checker.Explore(PullWorld{});
  EXPECT_NE(checker.found().find(GetParam().broken), std::string::npos) << "found: " << checker.found();
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, PlantedPullTest,
    ::testing::Values(Planted{"NoFirstCheck", PullMistake::kNoFirstCheck, "given back"},
                      Planted{"NoSecondCheck", PullMistake::kNoSecondCheck, "did not promise"},
                      Planted{"GenerationIgnored", PullMistake::kGenerationIgnored, "did not promise"},
                      Planted{"GrantNotAsked", PullMistake::kGrantNotAsked, "another grant"},
                      Planted{"RevokedBeforeOwnCopies", PullMistake::kRevokedBeforeOwnCopies,
                              "after the revoke"},
                      Planted{"ChangedBeforeClosed", PullMistake::kChangedBeforeClosed, "did not promise"}),
    [](const auto& each) { return each.param.name; });

// The same with two threads, in the order in which the processor does it.
TEST(PullOrdersTest, WhatStoodAfterTheCopyWasNotChanged) {
  constexpr int kStood = 2'000;
  constexpr size_t kWords = 32;
  Word open{0};
  std::atomic<uint32_t> generation{0};
  std::array<std::atomic<uint32_t>, kWords> source{};
  std::atomic<bool> end{false};
  std::thread writer([&] {
    for (uint32_t offered = 1; !end.load(std::memory_order_relaxed); ++offered) {
      for (auto& word : source) word.store(offered, std::memory_order_relaxed);
      generation.store(offered, std::memory_order_seq_cst);
      open.store(kSourcesOpen, std::memory_order_seq_cst);
      if (offered % 8 == 0) std::this_thread::yield();
      CloseSource(open);
      for (auto& word : source) word.store(0, std::memory_order_relaxed);
    }
  });
  for (int stood = 0; stood < kStood;) {
    const uint32_t named = generation.load(std::memory_order_seq_cst);
    std::array<uint32_t, kWords> copied{};
    // Acquire: the end of a copy is seen before what is read after it, as a device's completion word is.
    for (size_t i = 0; i < kWords; ++i) copied[i] = source[i].load(std::memory_order_acquire);
    if (!SourceStands(open, generation, named)) continue;
    ++stood;
    for (const uint32_t word : copied) EXPECT_EQ(word, named);
  }
  end = true;
  writer.join();
}

}  // namespace
}  // namespace weightcast::transport::shm
