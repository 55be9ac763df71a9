#include "tools/trace.h"

#include <ctime>

#include "base/strings.h"
#include "tools/json.h"
#include "tools/output.h"

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
                  message.received ? "  said  " : "  told  ", NumberText(message.number), "  ",
                  Grouped(message.bytes), " B  ", message.name, message.fields, "\n");
  return out;
}

std::string TraceJson(const protocol::Trace& trace) {
  std::string out;
  uint64_t place = trace.first;
  for (const auto& message : trace.messages) {
    Json json;
    json.BeginObject().Key("place").Number(place++).Key("microseconds").Number(message.microseconds);
    json.Key("model").String(message.model).Key("worker").String(ToString(message.worker));
    json.Key("from").String(message.received ? "worker" : "controller");
    json.Key("number").Number(message.number).Key("bytes").Number(message.bytes);
    json.Key("name").String(message.name).Key("fields").String(message.fields);
    out += json.EndObject().Line();
  }
  return out;
}

}  // namespace weightcast::tools
