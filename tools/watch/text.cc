#include "tools/watch/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <optional>

#include "base/strings.h"
#include "tools/common/json.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

using counters::Change;
using counters::DeviceSummary;
using counters::kNames;
using counters::kQuantities;
using counters::PerQuantity;
using counters::Quantity;
using counters::Step;

constexpr size_t kHistory = 30;
constexpr size_t kStepDevices = 3;
/// Of the steps at the beginning and at the end, where there are more.
constexpr size_t kStepsShown = 10;

std::string BytesOr(const std::optional<uint64_t>& bytes) {
  return bytes ? HumanBytes(static_cast<double>(*bytes)) : "-";
}

std::optional<uint64_t> Sum(const std::optional<uint64_t>& one, const std::optional<uint64_t>& other) {
  if (!one && !other) return std::nullopt;
  return one.value_or(0) + other.value_or(0);
}

/// "1.2 GB/s", "340 /s", "-".
std::string Speed(const std::optional<uint64_t>& bytes, double seconds) {
  return bytes ? StrCat(HumanBytes(static_cast<double>(*bytes) / seconds), "/s") : "-";
}
std::string Frequency(const std::optional<uint64_t>& count, double seconds) {
  return count ? Decimal(static_cast<double>(*count) / seconds, 0) : "-";
}

std::optional<uint64_t> Packets(const PerQuantity<uint64_t>& counts) {
  return Sum(counts[Quantity::kSentPackets], counts[Quantity::kReceivedPackets]);
}
std::optional<uint64_t> Cnps(const PerQuantity<uint64_t>& counts) {
  return Sum(counts[Quantity::kCnpsSent], counts[Quantity::kCnpsReceived]);
}
std::optional<uint64_t> Pauses(const PerQuantity<uint64_t>& counts) {
  return Sum(counts[Quantity::kPausesSent], counts[Quantity::kPausesReceived]);
}

void AddCounts(Json& json, const PerQuantity<uint64_t>& counts) {
  for (size_t i = 0; i < kQuantities; ++i) json[kNames[i]] = counts.at(i) ? Json(*counts.at(i)) : Json();
}

Json DevicesJson(const std::vector<Change>& changes) {
  return JsonArray(changes, [](const Change& change) {
    Json device{{"name", change.device}, {"kind", NameOf(change.kind)}};
    AddCounts(device, change.counts);
    return device;
  });
}

Json OneStepJson(const Step& step) {
  return {{"name", step.name}, {"seconds", step.seconds}, {"devices", DevicesJson(step.changes)}};
}

std::vector<std::string> Row(const Step& step, const std::vector<DeviceSummary>& devices) {
  std::vector<std::string> row{step.name, Decimal(step.seconds, 3)};
  for (const DeviceSummary& device : devices) {
    const auto same = [&](const Change& one) {
      return one.device == device.device && one.kind == device.kind;
    };
    const auto found = std::ranges::find_if(step.changes, same);
    const bool known = found != step.changes.end();
    row.push_back(known ? BytesOr(found->counts[Quantity::kSentBytes]) : "-");
    row.push_back(known ? BytesOr(found->counts[Quantity::kReceivedBytes]) : "-");
  }
  return row;
}

std::string StepsTable(const counters::StepLog& log, std::vector<DeviceSummary> devices) {
  std::erase_if(devices, [](const DeviceSummary& one) {
    return !one.totals[Quantity::kSentBytes] && !one.totals[Quantity::kReceivedBytes];
  });
  if (devices.size() > kStepDevices) devices.resize(kStepDevices);
  std::vector<std::string> heading{"step", "seconds"};
  for (const DeviceSummary& device : devices) {
    heading.push_back(StrCat(device.device, " sent"));
    heading.push_back("received");
  }
  Table table(heading);
  const std::vector<Step>& steps = log.steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool left_out = i >= kStepsShown && i + kStepsShown < steps.size();
    if (left_out && i == kStepsShown) table.Add({StrCat("(", steps.size() - 2 * kStepsShown, " more)")});
    if (!left_out) table.Add(Row(steps[i], devices));
  }
  Step rest = log.rest();
  rest.name = "(after the last mark)";
  table.Add(Row(rest, devices));
  return table.ToString();
}

}  // namespace

std::string Sparkline(const std::deque<double>& values, bool utf8) {
  static constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<const char*, 8> kLetters = {"_", ".", ":", "-", "=", "+", "*", "#"};
  const double most = values.empty() ? 0 : *std::ranges::max_element(values);
  std::string line;
  for (const double value : values) {
    const double part = most > 0 ? value / most : 0;
    const auto level = static_cast<size_t>(std::clamp(part * 7 + 0.5, 0.0, 7.0));
    line += utf8 ? kBlocks[level] : kLetters[level];
  }
  return line;
}

bool HasUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string text(value);
    for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

std::string RateTable::Next(const std::vector<Change>& changes, double seconds) {
  Table table({"device", "sent", "received", "packets/s", "retrans/s", "CNP/s", "pause/s", "drops/s",
               StrCat("last ", kHistory, ": bytes (tcp: packets)")});
  for (const Change& change : changes) {
    const auto bytes = Sum(change.counts[Quantity::kSentBytes], change.counts[Quantity::kReceivedBytes]);
    std::deque<double>& history = history_[StrCat(NameOf(change.kind), " ", change.device)];
    history.push_back(static_cast<double>((bytes ? bytes : Packets(change.counts)).value_or(0)));
    if (history.size() > kHistory) history.pop_front();
    table.Add({change.device, Speed(change.counts[Quantity::kSentBytes], seconds),
               Speed(change.counts[Quantity::kReceivedBytes], seconds),
               Frequency(Packets(change.counts), seconds),
               Frequency(change.counts[Quantity::kRetransmissions], seconds),
               Frequency(Cnps(change.counts), seconds), Frequency(Pauses(change.counts), seconds),
               Frequency(change.counts[Quantity::kDrops], seconds), Sparkline(history, utf8_)});
  }
  return table.ToString();
}

std::string RateLines(const std::vector<Change>& changes, double seconds, const std::string& time) {
  std::string text;
  for (const Change& change : changes) {
    text += StrCat(time, " ", change.device, " sent ", Speed(change.counts[Quantity::kSentBytes], seconds),
                   " received ", Speed(change.counts[Quantity::kReceivedBytes], seconds), " packets/s ",
                   Frequency(Packets(change.counts), seconds), " retransmissions/s ",
                   Frequency(change.counts[Quantity::kRetransmissions], seconds), " CNP/s ",
                   Frequency(Cnps(change.counts), seconds), " pause/s ",
                   Frequency(Pauses(change.counts), seconds), " drops/s ",
                   Frequency(change.counts[Quantity::kDrops], seconds), "\n");
  }
  return text;
}

std::string RateJson(const std::vector<Change>& changes, double seconds, double unix_time,
                     const std::vector<std::string>& notes) {
  return JsonLine(
      {{"time", unix_time}, {"seconds", seconds}, {"devices", DevicesJson(changes)}, {"notes", notes}});
}

std::string StepText(const counters::StepLog& log) {
  const std::vector<DeviceSummary> devices = Summarize(log);
  std::string text;
  if (!log.steps().empty()) text += StrCat(StepsTable(log, devices), "\n");
  Table table({"device", "sent a step", "received a step", "sent in all", "received in all",
               "retransmissions", "CNPs", "pauses", "drops"});
  const bool steps = !log.steps().empty();
  const auto count = [](const std::optional<uint64_t>& value) { return value ? Grouped(*value) : "-"; };
  for (const DeviceSummary& one : devices) {
    const bool bytes = one.totals[Quantity::kSentBytes] || one.totals[Quantity::kReceivedBytes];
    table.Add({one.device, steps && bytes ? HumanBytes(one.median_sent) : "-",
               steps && bytes ? HumanBytes(one.median_received) : "-",
               BytesOr(one.totals[Quantity::kSentBytes]), BytesOr(one.totals[Quantity::kReceivedBytes]),
               count(one.totals[Quantity::kRetransmissions]), count(Cnps(one.totals)),
               count(Pauses(one.totals)), count(one.totals[Quantity::kDrops])});
  }
  if (table.empty()) return text + "no device moved anything\n";
  text += table.ToString();
  if (log.steps().size() > 1)
    text += "A step: the median without the first, which also holds the program's start.\n";
  return text;
}

std::string StepJson(const counters::StepLog& log, int exit_code, const std::vector<std::string>& notes) {
  Json devices = Json::array();
  for (const DeviceSummary& one : Summarize(log)) {
    Json& device = devices.emplace_back(Json{{"name", one.device},
                                             {"kind", NameOf(one.kind)},
                                             {"median_sent_bytes", one.median_sent},
                                             {"median_received_bytes", one.median_received}});
    AddCounts(device, one.totals);
  }
  return JsonLine({{"exit_code", exit_code},
                   {"steps", JsonArray(log.steps(), OneStepJson)},
                   {"rest", OneStepJson(log.rest())},
                   {"devices", std::move(devices)},
                   {"notes", notes}});
}

}  // namespace weightcast::tools
