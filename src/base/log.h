#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/strings.h"
#include "weightcast/clock.h"

namespace weightcast {

enum class LogLevel : int { kDebug = 0, kInfo, kWarning, kError, kOff };

/// Sets what is printed to standard error. Thread safe. Default: kWarning, or WEIGHTCAST_LOG_LEVEL.
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();
/// "debug", "info", "warning", "error", "off"; nullopt otherwise.
std::optional<LogLevel> LogLevelFromName(std::string_view name);
/// Put before every line of this process, e.g. "trainer 3". Thread safe.
void SetLogPrefix(std::string_view prefix);
/// Prints one line to standard error. Thread safe; a line is never torn.
void Log(LogLevel level, std::string_view message);

/// Lets one line a second through of those that others can cause as often as they like, and counts the rest.
/// Thread safe.
class OncePerSecond {
 public:
  OncePerSecond() = default;
  /// Of one that nobody uses at the time.
  OncePerSecond(OncePerSecond&& other) noexcept
      : next_(other.next_.load()), left_out_(other.left_out_.load()) {}
  /// nullopt: leave it out. Otherwise how many were left out since the last that went through.
  std::optional<uint64_t> Due(TimePoint now) {
    Duration::rep next = next_.load(std::memory_order_relaxed);
    const Duration::rep at = now.time_since_epoch().count();
    const Duration::rep later = at + Duration(std::chrono::seconds(1)).count();
    if (at >= next && next_.compare_exchange_strong(next, later)) return left_out_.exchange(0);
    left_out_.fetch_add(1);
    return std::nullopt;
  }

 private:
  std::atomic<Duration::rep> next_{std::numeric_limits<Duration::rep>::min()};
  std::atomic<uint64_t> left_out_{0};
};
/// " (3 more like this one were left out)"; empty for 0.
std::string LeftOutText(uint64_t count);

}  // namespace weightcast

/// WC_LOG(kInfo, "accepted ", n, " of ", total); the arguments are evaluated only when printed.
#define WC_LOG(level, ...)                                                                 \
  do {                                                                                     \
    if (::weightcast::LogLevel::level >= ::weightcast::GetLogLevel())                      \
      ::weightcast::Log(::weightcast::LogLevel::level, ::weightcast::StrCat(__VA_ARGS__)); \
  } while (false)

/// WC_LOG for what a peer can cause: at most one line a second from this place in the code, and the next line
/// says how many were left out.
#define WC_LOG_LIMITED(level, ...)                                                                   \
  do {                                                                                               \
    static ::weightcast::OncePerSecond wc_limit;                                                     \
    if (::weightcast::LogLevel::level < ::weightcast::GetLogLevel()) break;                          \
    if (const auto wc_left_out = wc_limit.Due(::weightcast::Clock::now()))                           \
      ::weightcast::Log(::weightcast::LogLevel::level,                                               \
                        ::weightcast::StrCat(__VA_ARGS__, ::weightcast::LeftOutText(*wc_left_out))); \
  } while (false)
