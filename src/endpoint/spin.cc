#include "endpoint/spin.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>

#include "base/fd.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

/// "0.20 0.18 0.12 1/80 11206": the number before the slash. Without /proc: too many.
int RunnableThreads() {
  static const UniqueFd file(open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
  char text[128];
  const ssize_t size = pread(file.get(), text, sizeof text, 0);
  if (size <= 0) return 1 << 20;
  const std::string_view line(text, static_cast<size_t>(size));
  const size_t slash = line.find('/');
  if (slash == std::string_view::npos) return 1 << 20;
  const size_t space = line.rfind(' ', slash);
  if (space == std::string_view::npos) return 1 << 20;
  return ParseNumber<int>(line.substr(space + 1, slash - space - 1)).value_or(1 << 20);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool CoresToSpare() {
  static const int cores = UsableCores();
  static std::atomic<TimePoint::rep> looked{0};
  static std::atomic<bool> answer{false};
  const auto now = Clock::now().time_since_epoch().count();
  auto last = looked.load(std::memory_order_relaxed);
  constexpr auto kInterval = Clock::duration(std::chrono::milliseconds(20)).count();
  if (now - last > kInterval && looked.compare_exchange_strong(last, now, std::memory_order_relaxed)) {
    answer.store(RunnableThreads() <= cores, std::memory_order_relaxed);
  }
  return answer.load(std::memory_order_relaxed);
}

bool Spin::GoOn(bool moved) {
  const TimePoint now = Clock::now();
  if (moved) {
    last_ = now;
    spinning_ = false;
    yielded_ = false;
    return true;
  }
  if (!spinning_ && now - last_ < kBudget) spinning_ = CoresToSpare();
  if (spinning_ && now - last_ < kBudget) {
    Pause();
    return true;
  }
  if (yielded_ || last_ == TimePoint{}) return false;
  yielded_ = true;
  sched_yield();
  return true;
}

}  // namespace weightcast::endpoint
