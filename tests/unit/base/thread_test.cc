#include "base/thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

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
  const pid_t pid = fork();
  if (pid == 0) {
    // The limit does not hold for root.
    if (geteuid() == 0 && setuid(65534) != 0) _exit(10);
    const rlimit none{1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(11);
    if (StartThread("wc-test", [] {}).status().code() != Code::kExhausted) _exit(1);
    const Status status = CheckThreads(4);
    if (status.code() != Code::kExhausted) _exit(2);
    if (status.message().find("ulimit -u") == std::string::npos) _exit(3);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

}  // namespace
}  // namespace weightcast
