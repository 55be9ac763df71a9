#include "counters/steps.h"

#include <algorithm>
#include <utility>

#include "base/statistics.h"
#include "base/strings.h"

namespace weightcast::counters {
namespace {

/// std::regex takes stack for each character.
constexpr size_t kMostMatched = 4096;
constexpr size_t kMostNamed = 32;
/// A line that never ends is cut.
constexpr size_t kMostOpen = size_t{64} << 10;

std::string NameFrom(std::string text) {
  for (char& letter : text)
    if (static_cast<unsigned char>(letter) < 0x20) letter = ' ';
  return text.substr(0, kMostNamed);
}

void Add(DeviceSummary& summary, const Change& change) {
  for (size_t i = 0; i < kQuantities; ++i) {
    if (change.counts.at(i)) summary.totals.at(i) = summary.totals.at(i).value_or(0) + *change.counts.at(i);
  }
}

uint64_t BytesOf(const DeviceSummary& one) {
  return one.totals[Quantity::kSentBytes].value_or(0) + one.totals[Quantity::kReceivedBytes].value_or(0);
}

double MedianOf(const std::vector<Step>& steps, const DeviceSummary& of, Quantity quantity) {
  std::vector<double> values;
  for (size_t i = steps.size() > 1 ? 1 : 0; i < steps.size(); ++i) {
    for (const Change& change : steps[i].changes) {
      if (change.device == of.device && change.kind == of.kind && change.counts[quantity])
        values.push_back(static_cast<double>(*change.counts[quantity]));
    }
  }
  return Median(std::move(values));
}

}  // namespace

Result<Marker> Marker::Parse(const std::string& expression) {
  // The standard has no other way to say it.
  try {
    return Marker(std::regex(expression, std::regex::ECMAScript | std::regex::optimize));
  } catch (const std::regex_error& error) {
    return Error(Code::kInvalidArgument, "--marker '", expression,
                 "' is not a regular expression: ", error.what(), "; write one such as 'step ([0-9]+)'");
  }
}

std::optional<std::string> Marker::Match(std::string_view line) const {
  std::match_results<std::string_view::const_iterator> found;
  const std::string_view looked_at = line.substr(0, kMostMatched);
  try {
    if (!std::regex_search(looked_at.begin(), looked_at.end(), found, expression_)) return std::nullopt;
  } catch (const std::regex_error&) {  // It would take too much memory on this line.
    return std::nullopt;
  }
  const bool group = found.size() > 1 && found[1].matched;
  return NameFrom(group ? found[1].str() : found[0].str());
}

std::vector<std::string> Lines::Add(std::string_view text) {
  std::vector<std::string> lines;
  for (const char letter : text) {
    if (letter != '\n' && letter != '\r' && open_.size() < kMostOpen) {
      open_ += letter;
    } else if (!open_.empty()) {
      lines.push_back(std::exchange(open_, {}));
    }
  }
  return lines;
}

std::string Lines::Rest() { return std::exchange(open_, {}); }

Step StepLog::Take(std::string name, Reading now) {
  Step step{.name = std::move(name), .seconds = Seconds(now.at - last_.at), .changes = Changes(last_, now)};
  last_ = std::move(now);
  return step;
}

void StepLog::Mark(std::string name, Reading now) { steps_.push_back(Take(std::move(name), std::move(now))); }

void StepLog::End(Reading now) { rest_ = Take({}, std::move(now)); }

std::vector<DeviceSummary> Summarize(const StepLog& log) {
  std::vector<DeviceSummary> all;
  const auto add = [&all](const Step& step) {
    for (const Change& change : step.changes) {
      const auto same = [&](const DeviceSummary& one) {
        return one.device == change.device && one.kind == change.kind;
      };
      auto found = std::ranges::find_if(all, same);
      if (found == all.end())
        found =
            all.insert(all.end(), DeviceSummary{.device = change.device, .kind = change.kind, .totals = {}});
      Add(*found, change);
    }
  };
  for (const Step& step : log.steps()) add(step);
  add(log.rest());
  std::erase_if(all, [](const DeviceSummary& one) {
    for (size_t i = 0; i < kQuantities; ++i)
      if (one.totals.at(i).value_or(0) > 0) return false;
    return true;
  });
  for (DeviceSummary& one : all) {
    one.median_sent = MedianOf(log.steps(), one, Quantity::kSentBytes);
    one.median_received = MedianOf(log.steps(), one, Quantity::kReceivedBytes);
  }
  std::ranges::stable_sort(all, std::greater<>(), BytesOf);
  return all;
}

}  // namespace weightcast::counters
