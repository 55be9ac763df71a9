#include "tools/common/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "base/strings.h"

namespace weightcast::tools {
namespace {

Status WriteTo(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return {errno == ENOSPC ? Code::kExhausted : Code::kUnavailable,
              StrCat("cannot write to standard output: ", ErrnoText(errno),
                     "; make room there, or send it elsewhere")};
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return Status::Ok();
}

bool LooksNumeric(std::string_view text) {
  return text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) != 0 || text == "-";
}

}  // namespace

Status Print(std::string_view text) { return WriteTo(STDOUT_FILENO, text); }

void PrintError(std::string_view text) {
  std::string line = "weightcast: ";
  for (const char character : text.substr(0, text.find_last_not_of('\n') + 1)) {
    if (character == '\n')
      line += "; ";
    else
      line += static_cast<unsigned char>(character) < 0x20 ? ' ' : character;
  }
  line += '\n';
  // Nobody is left to tell where standard error cannot be written.
  [[maybe_unused]] const Status status = WriteTo(STDERR_FILENO, line);
}

int TerminalWidth() {
  if (isatty(STDERR_FILENO) == 0) return 0;
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  std::vector<bool> right;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    right.resize(widths.size(), true);
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
      if (&row != &rows_.front() && !LooksNumeric(row[i])) right[i] = false;
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += StrCat(i == 0 ? "" : "  ", right[i] ? space + row[i] : row[i] + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string Grouped(uint64_t value) {
  std::string text = StrCat(value);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

void ProgressBar::Show(double part, std::string_view text) {
  if (width_ == 0) return;
  constexpr int kCells = 24;
  const int full = std::clamp(static_cast<int>(part * kCells), 0, kCells);
  std::string line = StrCat("[", std::string(static_cast<size_t>(full), '#'),
                            std::string(static_cast<size_t>(kCells - full), '-'), "] ", text);
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(width_ - 1, 1))));
  shown_ = true;
  [[maybe_unused]] const Status status = WriteTo(STDERR_FILENO, StrCat("\r\033[K", line));
}

void ProgressBar::Clear() {
  if (!shown_) return;
  shown_ = false;
  [[maybe_unused]] const Status status = WriteTo(STDERR_FILENO, "\r\033[K");
}

}  // namespace weightcast::tools
