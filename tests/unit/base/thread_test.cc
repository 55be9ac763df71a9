#include "base/thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "child_process.h"

namespace weightcast {
namespace {

TEST(Thread, RunsAndJoins) {
  std::atomic<int> ran = 0;
  auto thread = StartThread("wc-test", [&] { ++ran; });
  ASSERT_TRUE(thread.ok());
  thread->join();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(CheckThreads(8).ok());
}

TEST(Thread, AThreadThatCannotBeMadeIsAnError) {
  test::Process child = test::Process::Fork([] {
    // The limit does not hold for root.
    if (geteuid() == 0 && setuid(65534) != 0) return 10;
    const rlimit none{1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) return 11;
    if (StartThread("wc-test", [] {}).status().code() != Code::kExhausted) return 1;
    const Status status = CheckThreads(4);
    if (status.code() != Code::kExhausted) return 2;
    return status.message().find("ulimit -u") == std::string::npos ? 3 : 0;
  });
  EXPECT_EQ(child.Wait(), 0);
}

}  // namespace
}  // namespace weightcast
