#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace weightcast {
namespace {

std::atomic<int>& Level() {
  static std::atomic<int> level = [] {
    const char* name = std::getenv("WEIGHTCAST_LOG_LEVEL");
    return static_cast<int>(LogLevelFromName(name == nullptr ? "" : name).value_or(LogLevel::kWarning));
  }();
  return level;
}

spdlog::logger& Logger() {
  // Never destroyed: threads may log while the process exits.
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("weightcast", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

std::mutex prefix_mutex;
std::string& Prefix() {
  static auto* prefix = new std::string;
  return *prefix;
}

}  // namespace

void SetLogLevel(LogLevel level) { Level().store(static_cast<int>(level), std::memory_order_relaxed); }

LogLevel GetLogLevel() { return static_cast<LogLevel>(Level().load(std::memory_order_relaxed)); }

std::optional<LogLevel> LogLevelFromName(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return std::nullopt;
}

void SetLogPrefix(std::string_view prefix) {
  const std::lock_guard lock(prefix_mutex);
  Prefix() = prefix.empty() ? std::string() : StrCat("[", prefix, "] ");
}

std::string LeftOutText(uint64_t count) {
  return count == 0 ? std::string() : StrCat(" (", count, " more like this one were left out)");
}

void Log(LogLevel level, std::string_view message) {
  static constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                          spdlog::level::warn, spdlog::level::err};
  if (level >= LogLevel::kOff) return;
  std::string line;
  {
    const std::lock_guard lock(prefix_mutex);
    line = StrCat(Prefix(), message);
  }
  Logger().log(kLevels[static_cast<int>(level)], line);
}

}  // namespace weightcast
