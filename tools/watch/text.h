#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "counters/changes.h"
#include "counters/steps.h"

namespace weightcast::tools {

/// The last values of something as a line of blocks, the highest of them full. Without UTF-8 of ASCII
/// letters.
std::string Sparkline(const std::deque<double>& values, bool utf8);
/// Whether the terminal's locale is one of UTF-8 (LC_ALL, LC_CTYPE, LANG).
bool HasUtf8();

/// The table of `weightcast watch` in a terminal. Remembers the last rates of each device.
class RateTable {
 public:
  explicit RateTable(bool utf8) : utf8_(utf8) {}
  /// What moved in `seconds`.
  std::string Next(const std::vector<counters::Change>& changes, double seconds);

 private:
  bool utf8_;
  std::map<std::string, std::deque<double>> history_;
};

/// A line for each device, for a file or a pipe. `time`: "15:04:05".
std::string RateLines(const std::vector<counters::Change>& changes, double seconds, const std::string& time);
/// One line of JSON: the counts of this interval.
std::string RateJson(const std::vector<counters::Change>& changes, double seconds, double unix_time,
                     const std::vector<std::string>& notes);

/// The steps of a program and the devices that moved their bytes.
std::string StepText(const counters::StepLog& log);
std::string StepJson(const counters::StepLog& log, int exit_code, const std::vector<std::string>& notes);

}  // namespace weightcast::tools
