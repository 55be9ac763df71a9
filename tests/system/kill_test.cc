#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/strings.h"
#include "process_role.h"

// kill -9 of any one process at any moment: the others end or recover in time and say who died, and nobody
// ever reports a version whose bytes are not there.

namespace weightcast::test {
namespace {

using testing::HasSubstr;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 4;
constexpr double kSlow = 6;
#else
constexpr int kRounds = 11;
constexpr double kSlow = 1;
#endif
constexpr double kLease = 0.5 * kSlow;
/// What the product promises.
constexpr double kBound = 2 * kLease + 5 * kSlow;

/// Two trainers and two engines: "a" of two ranks, "b" of one.
class Kill : public testing::Test {
 protected:
  enum Index : size_t { kController, kTrainer0, kTrainer1, kA0, kA1, kB0, kCount };

  /// Another one in each run; a failure shows it.
  static uint32_t Seed() {
    static const uint32_t seed = [] {
      const char* given = std::getenv("WC_TEST_SEED");
      return given != nullptr ? static_cast<uint32_t>(std::stoul(given)) : std::random_device()();
    }();
    return seed;
  }

  /// `engines`: without so many there is no plan.
  static std::unique_ptr<Cluster> StartAll(std::mt19937& random, int engines = 2) {
    auto cluster = std::make_unique<Cluster>();
    std::map<std::string, std::string> options = {{"lease", StrCat(kLease)},
                                                  {"engines", StrCat(engines)},
                                                  {"landing", random() % 2 == 0 ? "shadow" : "in_place"},
                                                  {"transport", random() % 2 == 0 ? "tcp" : "shm"}};
    cluster->Start({.role = "controller", .engine = "", .rank = 0, .ranks = 1, .options = options});
    for (const uint32_t rank : {0U, 1U})
      cluster->Start({.role = "trainer", .engine = "", .rank = rank, .ranks = 2, .options = options});
    for (const uint32_t rank : {0U, 1U})
      cluster->Start({.role = "inference", .engine = "a", .rank = rank, .ranks = 2, .options = options});
    cluster->Start({.role = "inference", .engine = "b", .rank = 0, .ranks = 1, .options = options});
    return cluster;
  }

  /// At some random moment after all have registered (planning, connecting, the first update), or after the
  /// first version is everywhere.
  static void KillAtRandom(Cluster& cluster, size_t victim, std::mt19937& random) {
    const bool early = random() % 2 == 0;
    const auto running = [&] {
      for (size_t i = kTrainer0; i < kCount; ++i) {
        const auto& process = cluster.board().process[i];
        if (early ? !process.registered : process.version < 1) return false;
      }
      return true;
    };
    ASSERT_TRUE(cluster.WaitUntil(running, 20 * kSlow)) << Describe(cluster);
    const double later = static_cast<double>(random() % (early ? 200 : 400)) / 1000 * kSlow;
    cluster.WaitUntil([] { return false; }, later);
    cluster.Kill(victim);
  }

  static void ExpectEnds(Cluster& cluster, const std::vector<size_t>& who, const std::string& name) {
    const bool ended = cluster.WaitUntil(
        [&] {
          for (const size_t index : who)
            if (cluster.ExitCode(index) < 0) return false;
          return true;
        },
        kBound);
    EXPECT_TRUE(ended) << "somebody hangs\n" << Describe(cluster);
    for (const size_t index : who) {
      EXPECT_EQ(cluster.ExitCode(index), 3) << Describe(cluster);
      EXPECT_THAT(cluster.ErrorOf(index), HasSubstr(name)) << Describe(cluster);
    }
  }

  static void ExpectNoMixture(Cluster& cluster) {
    for (size_t i = kA0; i < kCount; ++i)
      EXPECT_EQ(cluster.board().process[i].violations, 0) << Describe(cluster);
  }

  static std::string Describe(Cluster& cluster) {
    std::string text = StrCat("WC_TEST_SEED=", Seed(), "\n");
    for (size_t i = 0; i < kCount; ++i) {
      const auto& process = cluster.board().process[i];
      text += StrCat("process ", i, ": version ", process.version.load(), ", exit code ", cluster.ExitCode(i),
                     ", ", process.comparisons.load(), " comparisons, ", process.violations.load(),
                     " violations, last error: ", cluster.ErrorOf(i), "\n");
    }
    return text;
  }
};

TEST_F(Kill, TrainerEndsEverybodyByName) {
  std::mt19937 random(Seed());
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    auto cluster = StartAll(random);
    const size_t victim = random() % 2 == 0 ? kTrainer0 : kTrainer1;
    KillAtRandom(*cluster, victim, random);
    const size_t other = victim == kTrainer0 ? kTrainer1 : kTrainer0;
    ExpectEnds(*cluster, {other, kA0, kA1, kB0}, StrCat("trainer ", victim - kTrainer0));
    ExpectNoMixture(*cluster);
  }
}

TEST_F(Kill, InferenceRankEndsItsEngineByNameAndTheOtherEngineGoesOn) {
  std::mt19937 random(Seed() + 1);
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    auto cluster = StartAll(random, /*engines=*/1);
    const size_t victim = random() % 2 == 0 ? kA0 : kA1;
    KillAtRandom(*cluster, victim, random);
    ExpectEnds(*cluster, {victim == kA0 ? kA1 : kA0}, StrCat("engine a rank ", victim - kA0));
    auto& board = cluster->board();
    const int64_t seen = board.process[kB0].version;
    EXPECT_TRUE(cluster->WaitUntil([&] { return board.process[kB0].version > seen + 1; }, kBound))
        << "the other engine gets nothing new\n"
        << Describe(*cluster);
    for (const size_t index : {size_t{kTrainer0}, size_t{kTrainer1}, size_t{kB0}})
      EXPECT_EQ(cluster->ExitCode(index), -1) << Describe(*cluster);
    ExpectNoMixture(*cluster);
  }
}

TEST_F(Kill, ControllerEndsWhatIsPublishedAndTheRanksServeOn) {
  std::mt19937 random(Seed() + 2);
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    auto cluster = StartAll(random);
    KillAtRandom(*cluster, kController, random);
    ExpectEnds(*cluster, {kTrainer0, kTrainer1}, "controller");
    for (const size_t index : {size_t{kA0}, size_t{kA1}, size_t{kB0}})
      EXPECT_EQ(cluster->ExitCode(index), -1) << Describe(*cluster);
    ExpectNoMixture(*cluster);
  }
}

/// The test of the test: the readers do compare.
TEST_F(Kill, ReadersCompareWhileVersionsChange) {
  std::mt19937 random(7);
  auto cluster = StartAll(random);
  auto& board = cluster->board();
  const auto enough = [&] {
    for (size_t i = kA0; i < kCount; ++i)
      if (board.process[i].comparisons < 3 || board.process[i].version < 5) return false;
    return true;
  };
  EXPECT_TRUE(cluster->WaitUntil(enough, 30 * kSlow)) << Describe(*cluster);
  board.stop = true;
  const auto workers_ended = [&] {
    for (size_t i = kTrainer0; i < kCount; ++i)
      if (cluster->ExitCode(i) < 0) return false;
    return true;
  };
  // Whoever leaves first may end another's update: the exit codes of workers are their own affair.
  EXPECT_TRUE(cluster->WaitUntil(workers_ended, kBound)) << Describe(*cluster);
  board.stop_controller = true;
  EXPECT_TRUE(cluster->WaitUntil([&] { return cluster->ExitCode(kController) == 0; }, kBound))
      << Describe(*cluster);
  ExpectNoMixture(*cluster);
}

}  // namespace
}  // namespace weightcast::test
