#include "tools/info/trace.h"

#include <ctime>

#include "base/strings.h"
#include "tools/common/json.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

constexpr uint64_t kMicrosecondsASecond = 1'000'000;

/// Local time of day, to the microsecond.
std::string TimeText(uint64_t microseconds) {
  const auto seconds = static_cast<std::time_t>(microseconds / kMicrosecondsASecond);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[16];
  text[std::strftime(text, sizeof text, "%H:%M:%S", &local)] = '\0';
  const std::string fraction = std::to_string(microseconds % kMicrosecondsASecond);
  return StrCat(text, ".", std::string(6 - fraction.size(), '0'), fraction);
}

std::string NumberText(uint64_t number) { return number == 0 ? "-" : StrCat("#", number); }

}  // namespace

std::string TraceText(const protocol::Trace& trace) {
  std::string out;
  for (const auto& message : trace.messages)
    out += StrCat(TimeText(message.microseconds), "  ", message.model, "  ", ToString(message.worker),
                  message.received ? "  received  " : "  sent  ", NumberText(message.number), "  ",
                  Grouped(message.bytes), " B  ", message.name, message.fields, "\n");
  return out;
}

std::string TraceJson(const protocol::Trace& trace) {
  std::string out;
  uint64_t place = trace.first;
  for (const auto& message : trace.messages)
    out += JsonLine({{"place", place++},
                     {"microseconds", message.microseconds},
                     {"model", message.model},
                     {"worker", ToString(message.worker)},
                     {"from", message.received ? "worker" : "controller"},
                     {"number", message.number},
                     {"bytes", message.bytes},
                     {"name", message.name},
                     {"fields", message.fields}});
  return out;
}

}  // namespace weightcast::tools
