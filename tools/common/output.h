#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/status.h"

namespace weightcast::tools {

/// Writes all of `text` to standard output. Errors: a closed pipe or a full disk.
Status Print(std::string_view text);

/// "weightcast: <text>", one line on standard error. Line breaks in it become "; ".
void PrintError(std::string_view text);

/// Whether standard error is a terminal; width in columns if so, else 0.
int TerminalWidth();

/// Aligned columns of text; the first row is the heading.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) : rows_{std::move(heading)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Columns of numbers are flushed right, the others left. Each line ends with '\n'.
  [[nodiscard]] std::string ToString() const;
  [[nodiscard]] bool empty() const { return rows_.size() == 1; }  ///< Nothing under the heading.

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "248,879,616".
std::string Grouped(uint64_t value);

/// A bar on standard error that is redrawn in place. Draws nothing where that is no terminal.
class ProgressBar {
 public:
  ProgressBar() : width_(TerminalWidth()) {}
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// `part` of 0 to 1, and what is going on.
  void Show(double part, std::string_view text);
  /// Removes the bar, so that something can be printed.
  void Clear();

 private:
  int width_;
  bool shown_ = false;
};

}  // namespace weightcast::tools
