#include "worker/loop.h"

#include <gtest/gtest.h>

#include <semaphore>
#include <thread>

#include "weightcast/status.h"

namespace weightcast::worker {
namespace {

TEST(LoopTest, RunAndWaitReturnsWhenTheTaskIsOver) {
  Loop loop("wc-test");
  ASSERT_TRUE(loop.Start().ok());
  int runs = 0;
  loop.RunAndWait([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  loop.Stop();
  loop.RunAndWait([&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

/// Whether the wait or the end comes first is chance: both orders come up in so many rounds.
TEST(LoopTest, RunAndWaitReturnsWhenTheLoopStopsBeforeTheTaskRuns) {
  for (int round = 0; round < 200; ++round) {
    Loop loop("wc-test");
    ASSERT_TRUE(loop.Start().ok());
    std::binary_semaphore running(0);
    std::binary_semaphore go_on(0);
    loop.Post([&] {
      running.release();
      go_on.acquire();
    });
    running.acquire();
    bool ran = false;
    std::thread waits([&] { loop.RunAndWait([&] { ran = true; }); });
    std::thread stops([&] { loop.Stop(); });
    // Refused once the loop has been told to stop; what was posted before is then dropped.
    while (loop.Post([] {})) std::this_thread::yield();
    go_on.release();
    waits.join();
    stops.join();
    EXPECT_FALSE(ran);
  }
}

}  // namespace
}  // namespace weightcast::worker
