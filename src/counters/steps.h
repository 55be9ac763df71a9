#pragma once

#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "counters/changes.h"
#include "counters/reading.h"
#include "weightcast/status.h"

namespace weightcast::counters {

/// Which lines of a program's output end a step.
class Marker {
 public:
  /// An ECMAScript expression. Its first group, where it has one, is the step's name: "step ([0-9]+)".
  static Result<Marker> Parse(const std::string& expression);
  /// The name, if this line is one. Without a group: what the whole expression matched.
  [[nodiscard]] std::optional<std::string> Match(std::string_view line) const;

 private:
  explicit Marker(std::regex expression) : expression_(std::move(expression)) {}
  std::regex expression_;
};

/// Cuts what a program prints into lines. A carriage return ends one, too: progress bars have no other end.
class Lines {
 public:
  /// The lines that `text` completes.
  std::vector<std::string> Add(std::string_view text);
  /// What came behind the last end of a line.
  std::string Rest();

 private:
  std::string open_;
};

/// What moved from one mark to the next.
struct Step {
  std::string name;
  double seconds = 0;
  std::vector<Change> changes;
};

/// Attributes what the counters count to steps: a mark ends its step.
class StepLog {
 public:
  explicit StepLog(Reading start) : last_(std::move(start)) {}
  /// The step of this name ends with this reading.
  void Mark(std::string name, Reading now);
  /// What came behind the last mark.
  void End(Reading now);

  /// The first one began with the program and so holds its start, too.
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }
  [[nodiscard]] const Step& rest() const { return rest_; }
  [[nodiscard]] const Reading& last() const { return last_; }

 private:
  Step Take(std::string name, Reading now);

  Reading last_;
  std::vector<Step> steps_;
  Step rest_;
};

/// One device over the steps; the first step is left out of the medians where there are others.
struct DeviceSummary {
  std::string device;
  DeviceKind kind = DeviceKind::kInterface;
  double median_sent = 0;  ///< Bytes a step.
  double median_received = 0;
  PerQuantity<uint64_t> totals;  ///< From the start to the end of the program.
};
/// Of the devices that moved something, the one with the most bytes first.
std::vector<DeviceSummary> Summarize(const StepLog& log);

}  // namespace weightcast::counters
