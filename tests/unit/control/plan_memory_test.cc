#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <future>
#include <random>

#include "base/strings.h"
#include "base/task_thread.h"
#include "child_process.h"
#include "control/plan_job.h"

namespace weightcast::control {
namespace {

constexpr int kTensorCount = 40;
constexpr int kTrainerCount = 8;
constexpr int kEngineCount = 32;

PlanMember MemberWith(SessionId session, protocol::WorkerName name,
                      const std::shared_ptr<const protocol::Register>& registration) {
  return {.session = session,
          .member = {.name = std::move(name), .incarnation = session, .addresses = {"10.0.0.1:1"}},
          .registration = registration,
          .landing = std::make_shared<protocol::LandingMap>()};
}

/// Trainers that hold rows, engines that hold everything: 10,240 routes.
PlanJob LargeJob() {
  PlanJob job;
  job.model = "policy";
  const auto shards = [](int rank, int ranks) {
    auto registration = std::make_shared<protocol::Register>();
    for (int i = 0; i < kTensorCount; ++i) {
      const int64_t rows = 64 / ranks;
      registration->shards.push_back(
          {.tensor = {.name = StrCat("t.", i), .dtype = DType::kF32, .shape = {64, 4}},
           .box = {.offset = {rank * rows, 0}, .size = {rows, 4}},
           .declared = false});
    }
    return registration;
  };
  SessionId session = 0;
  for (uint32_t rank = 0; rank < kTrainerCount; ++rank)
    job.sources.push_back(MemberWith(++session,
                                     {.role = protocol::Role::kTrainer, .engine = "", .rank = rank},
                                     shards(static_cast<int>(rank), kTrainerCount)));
  const auto whole = shards(0, 1);
  for (int engine = 0; engine < kEngineCount; ++engine)
    job.engines.push_back({MemberWith(
        ++session, {.role = protocol::Role::kInference, .engine = StrCat("e", engine), .rank = 0}, whole)});
  return job;
}

/// Plans with so much more memory than is used now; exits with 0 (planned), 1 (an error that names the
/// memory) or 2.
[[noreturn]] void PlanWith(uint64_t spare, uint64_t estimate) {
  TaskThread planner("wc-planner");
  if (!planner.Start().ok()) _exit(2);
  PlanJob job = LargeJob();
  job.memory = estimate;
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  const uint64_t limit = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + spare;
  const rlimit limits{limit, limit};
  if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(2);
  std::promise<PlanOutput> promise;
  planner.Run([&] { promise.set_value(RunPlan(job)); });
  const PlanOutput output = promise.get_future().get();
  const bool planned = output.status.ok() && output.handouts.size() == kTrainerCount + kEngineCount;
  const bool refused = output.status.code() == Code::kExhausted && output.concerned.empty() &&
                       output.handouts.empty() && output.status.message().find("memory") != std::string::npos;
  _exit(planned ? 0 : refused ? 1 : 2);
}

TEST(RunPlan, WithAnyLimitOfMemoryAPlanIsMadeOrRefused) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer takes terabytes of addresses for itself";
#endif
  const char* given = std::getenv("WC_SEED");
  const auto seed = given != nullptr ? static_cast<uint32_t>(std::atoll(given)) : std::random_device()();
  SCOPED_TRACE(StrCat("WC_SEED=", seed));
  std::mt19937 random(seed);
  int outcomes[2] = {0, 0};
  for (int i = 0; i < 25; ++i) {
    // The first is enough, the second too little.
    const double drawn = std::uniform_real_distribution(18.0, 26.0)(random);
    const auto spare = static_cast<uint64_t>(std::exp2(i == 0 ? 27.0 : i == 1 ? 18.0 : drawn));
    // With its own estimate, and without one, so that memory runs out in the middle.
    const uint64_t estimate = i % 2 == 0 ? 0 : UINT64_MAX;
    test::Process child = test::Process::Fork([&]() -> int { PlanWith(spare, estimate); });
    const std::optional<int> code = child.Wait();
    ASSERT_TRUE(code) << "does not end with " << spare << " bytes";
    ASSERT_LT(*code, 2) << "with " << spare << " bytes; 256 and more: ended by a signal";
    ++outcomes[*code];
  }
  EXPECT_GT(outcomes[0], 0);
  EXPECT_GT(outcomes[1], 0);
}

}  // namespace
}  // namespace weightcast::control
