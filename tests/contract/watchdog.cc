// A test that stands still says where: after three minutes every thread prints its stack, and the program
// ends. (Resolve the addresses by `addr2line -Cfie contract`.)
#include <dirent.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <ctime>

namespace weightcast::transport {
namespace {

/// Longer than any wait of a test, and shorter than the time-out of a program of many tests.
constexpr unsigned kLimitSeconds = 180;
constexpr int kDeepest = 64;

std::atomic<int> printing{0};

void PrintStack(int /*signal*/) {
  void* frames[kDeepest];
  backtrace_symbols_fd(frames, backtrace(frames, kDeepest), STDERR_FILENO);
  printing.store(0);
}

/// One thread after the other; one that does not answer within a second is left out.
void PrintAll(int /*signal*/) {
  DIR* const threads = opendir("/proc/self/task");
  while (const dirent* const each = threads == nullptr ? nullptr : readdir(threads)) {
    const int thread = std::atoi(each->d_name);
    if (thread == 0) continue;
    dprintf(STDERR_FILENO, "--- thread %d\n", thread);
    printing.store(1);
    syscall(SYS_tgkill, getpid(), thread, SIGUSR2);
    for (int i = 0; i < 100 && printing.load() != 0; ++i) {
      const timespec pause{.tv_sec = 0, .tv_nsec = 10'000'000};
      nanosleep(&pause, nullptr);
    }
  }
  dprintf(STDERR_FILENO, "the test has stood still for %u s\n", kLimitSeconds);
  _exit(EXIT_FAILURE);
}

class Watchdog : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override {
    signal(SIGUSR2, PrintStack);
    signal(SIGALRM, PrintAll);
    alarm(kLimitSeconds);
  }
  void OnTestEnd(const testing::TestInfo& /*test*/) override { alarm(0); }
};

[[maybe_unused]] const bool added = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return true;
}();

}  // namespace
}  // namespace weightcast::transport
