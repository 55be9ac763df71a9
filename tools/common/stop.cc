#include "tools/common/stop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

#include "base/strings.h"

namespace weightcast::tools {
namespace {

constexpr unsigned kStopSeconds = 2;

std::atomic<int> stop_signal{0};
std::atomic<int> stop_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free, "signal handlers need it");

void OnStop(int signal) {
  int none = 0;
  if (!stop_signal.compare_exchange_strong(none, signal)) _exit(128 + none);
  const uint64_t one = 1;
  // A full eventfd is readable already.
  [[maybe_unused]] const ssize_t written = write(stop_fd.load(), &one, sizeof one);
  alarm(kStopSeconds);
}

void OnAlarm(int) {
  constexpr std::string_view kText =
      "weightcast: ended at once: it was asked to end and still waited for other processes\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
  _exit(128 + stop_signal.load());
}

void Install(int signal, void (*handler)(int)) {
  struct sigaction before{};
  // Whoever starts us with it ignored (nohup, a shell's background job) wants it ignored.
  if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN && signal != SIGTERM) return;
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void InstallStopSignals() {
  stop_fd.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) Install(signal, OnStop);
  Install(SIGALRM, OnAlarm);
  Install(SIGPIPE, SIG_IGN);
}

int StopSignal() { return stop_signal.load(); }

int StopDescriptor() { return stop_fd.load(); }

Status CheckStop() {
  if (StopSignal() == 0) return Status::Ok();
  return Error(Code::kCancelled, "stopped by signal ", StopSignal(), "; start it again to go on");
}

}  // namespace weightcast::tools
