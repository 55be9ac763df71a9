#include "base/task_thread.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace weightcast {
namespace {

TEST(TaskThread, RunsAllInOrderAndNotOnTheCallersThread) {
  std::vector<int> ran;
  std::vector<std::thread::id> threads;
  {
    TaskThread tasks("wc-test");
    for (int i = 0; i < 100; ++i) {
      tasks.Run([&, i] {
        ran.push_back(i);
        threads.push_back(std::this_thread::get_id());
      });
    }
  }
  ASSERT_EQ(ran.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[i], i);
  EXPECT_NE(threads.front(), std::this_thread::get_id());
  EXPECT_EQ(threads.front(), threads.back());
}

TEST(TaskThread, OneWithoutTasksEnds) { const TaskThread tasks("wc-test"); }

}  // namespace
}  // namespace weightcast
