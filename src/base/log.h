#pragma once

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
/// Lets a message through that may come thousands of times: once a second. One thread.
class OncePerSecond {
 public:
  bool Due(TimePoint now) {
    if (now < next_) return false;
    next_ = now + std::chrono::seconds(1);
    return true;
  }

 private:
  TimePoint next_{};
};
/// Prints one line to standard error. Thread safe; a line is never torn.
void Log(LogLevel level, std::string_view message);

}  // namespace weightcast

/// WC_LOG(kInfo, "accepted ", n, " of ", total); the arguments are evaluated only when printed.
#define WC_LOG(level, ...)                                                                 \
  do {                                                                                     \
    if (::weightcast::LogLevel::level >= ::weightcast::GetLogLevel())                      \
      ::weightcast::Log(::weightcast::LogLevel::level, ::weightcast::StrCat(__VA_ARGS__)); \
  } while (false)
