#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <optional>

#include "base/socket.h"
#include "base/strings.h"
#include "base/wall_clock.h"
#include "counters/reader.h"
#include "counters/steps.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/stop.h"
#include "tools/watch/program.h"
#include "tools/watch/text.h"

namespace weightcast::tools {
namespace {

using counters::Change;
using counters::Device;
using counters::Reading;

constexpr double kLeastInterval = 0.05;
constexpr double kMostInterval = 3600;

std::string TimeOfDay() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char text[16] = {};
  if (localtime_r(&now, &local) != nullptr) std::strftime(text, sizeof text, "%H:%M:%S", &local);
  return text;
}

/// The devices that the user wants to see.
class Selection {
 public:
  explicit Selection(std::vector<std::string> names) : names_(std::move(names)) {}

  /// Each name is a device of this machine.
  [[nodiscard]] Status Check(const Reading& reading, const std::string& no_nvlink) const {
    for (const std::string& name : names_) {
      if (std::ranges::any_of(reading.devices, [&](const Device& one) { return Is(one.name, name); }))
        continue;
      const std::string all = Join(reading.devices, ", ", &Device::name);
      return Error(Code::kInvalidArgument, "no device with traffic counters is called '", name,
                   all.empty() ? "'; this machine has none: watch another" : "'; name one of these: ", all,
                   name.starts_with("gpu") && !no_nvlink.empty() ? StrCat("; ", no_nvlink) : "");
    }
    return Status::Ok();
  }
  /// Without names: all that have counted something.
  void Filter(Reading& reading) const {
    std::erase_if(reading.devices, [this](const Device& one) {
      return !names_.empty() &&
             std::ranges::none_of(names_, [&](const std::string& name) { return Is(one.name, name); });
    });
  }
  [[nodiscard]] std::vector<Change> Shown(const Reading& before, const Reading& now) const {
    std::vector<Change> changes = counters::Changes(before, now);
    if (!names_.empty()) return changes;
    std::erase_if(changes, [&](const Change& change) {
      return std::ranges::none_of(now.devices, [&](const Device& one) {
        return one.name == change.device && one.kind == change.kind && HasCounted(one);
      });
    });
    return changes;
  }

 private:
  /// "mlx5_0" is all of its ports.
  static bool Is(const std::string& device, const std::string& name) {
    return device == name || device.starts_with(name + ":");
  }
  static bool HasCounted(const Device& device) {
    for (size_t i = 0; i < counters::kQuantities; ++i)
      if (device.counts.at(i) && device.counts.at(i)->value > 0) return true;
    return false;
  }

  std::vector<std::string> names_;
};

class WatchCommand : public Command {
 public:
  WatchCommand()
      : Command({.name = "watch",
                 .summary = "Shows what NICs and GPU links carry now, or in each step of a program",
                 .example =
                     R"(  weightcast watch                                   rates of all devices, each second
  weightcast watch --devices eth0,mlx5_0 --json      a line of JSON each second
  weightcast watch --marker 'step ([0-9]+)' --per-iteration -- torchrun train.py --steps 20
                                                     bytes of each step that the program prints
)"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--interval", interval_, "SECONDS", "From one line or picture to the next");
    flags.Add("--count", count_, 0, INT64_MAX, "End after so many; 0: at Ctrl-C");
    flags.AddList("--devices", devices_, "NAMES",
                  "eth0, mlx5_0 or mlx5_0:1, tcp, gpu0; without it all that have counted anything");
    flags.AddProgram(
        "--per-iteration", program_,
        "Run this and say what moved in each step. One word: a line for the shell. A program with "
        "options of its own stands at the end, behind --");
    flags.Add("--marker", marker_, "REGEX",
              "With --per-iteration: a line of its output that this matches ends a step; its first group is "
              "the step's name");
  }
  [[nodiscard]] int exit_code() const override { return exit_code_; }

  Status Run(const Context& context) override {
    const auto interval = ParseInterval();
    if (!interval)
      return Error(Code::kInvalidArgument, "--interval is '", interval_,
                   "'; it must be a number of seconds in [", kLeastInterval, ", ", kMostInterval, "]");
    if (program_.empty() != marker_.empty())
      return {Code::kInvalidArgument, "--per-iteration CMD and --marker REGEX belong together; give both"};
    counters::Reader reader(counters::LocalSources());
    Reading first = reader.Read();
    const Selection selection(devices_);
    WC_RETURN_IF_ERROR(selection.Check(first, reader.no_nvlink()));
    selection.Filter(first);
    if (program_.empty()) return Rates(context, reader, selection, std::move(first), *interval);
    return Steps(context, reader, selection, std::move(first));
  }

 private:
  [[nodiscard]] std::optional<double> ParseInterval() const {
    double seconds = 0;
    const char* const end = interval_.data() + interval_.size();
    const auto [at, error] = std::from_chars(interval_.data(), end, seconds);
    if (error != std::errc() || at != end || !(seconds >= kLeastInterval) || seconds > kMostInterval)
      return std::nullopt;
    return seconds;
  }

  static std::vector<std::string> NotesOf(counters::Reader& reader, const Reading& before,
                                          const Reading& now) {
    std::vector<std::string> notes = reader.Troubles();
    for (const std::string& name : counters::Gone(before, now))
      notes.push_back(StrCat(name, " has gone; what it moved since the last reading is not counted"));
    for (const std::string& name : counters::BeganAgain(before, now))
      notes.push_back(
          StrCat(name, " began to count again; what it moved since the last reading is not counted"));
    return notes;
  }

  [[nodiscard]] Status Rates(const Context& context, counters::Reader& reader, const Selection& selection,
                             Reading before, double interval) const {
    const bool redraw = !context.json && isatty(STDOUT_FILENO) != 0;
    RateTable table(HasUtf8());
    std::vector<std::string> kept;  // Below the table, which takes the whole screen.
    TimePoint next = before.at;
    for (int64_t i = 0; count_ == 0 || i < count_; ++i) {
      next = std::max(next + FromSeconds(interval), Clock::now());
      if (WaitFor(StopDescriptor(), POLLIN, next)) break;
      Reading now = reader.Read();
      selection.Filter(now);
      const double seconds = Seconds(now.at - before.at);
      const std::vector<Change> changes = selection.Shown(before, now);
      const std::vector<std::string> notes = NotesOf(reader, before, now);
      if (!context.json && !redraw)
        for (const std::string& note : notes) PrintError(note);
      kept.insert(kept.end(), notes.begin(), notes.end());
      WC_RETURN_IF_ERROR(Print(context.json ? RateJson(changes, seconds, UnixNow(), notes)
                               : redraw     ? Picture(table.Next(changes, seconds), kept)
                                            : RateLines(changes, seconds, TimeOfDay())));
      before = std::move(now);
    }
    return Status::Ok();
  }

  [[nodiscard]] std::string Picture(const std::string& table, const std::vector<std::string>& notes) const {
    std::string text =
        StrCat("\033[H\033[J", TimeOfDay(), "  every ", interval_, " s; Ctrl-C ends\n\n", table);
    for (const std::string& note : notes) text += StrCat("\n", note, "\n");
    return text;
  }

  Status Steps(const Context& context, counters::Reader& reader, const Selection& selection, Reading first) {
    WC_ASSIGN_OR_RETURN(const counters::Marker marker, counters::Marker::Parse(marker_));
    std::vector<std::string> notes;
    counters::StepLog log(std::move(first));
    const auto read = [&] {
      Reading now = reader.Read();
      selection.Filter(now);
      const auto more = NotesOf(reader, log.last(), now);
      notes.insert(notes.end(), more.begin(), more.end());
      return now;
    };
    counters::Lines lines[2];
    const auto look = [&](const std::string& line) {
      if (auto step = marker.Match(line)) log.Mark(std::move(*step), read());
    };
    WC_ASSIGN_OR_RETURN(exit_code_,
                        Program::Run({.words = program_,
                                      .output_to_error = context.json,
                                      .heard = [&](int stream, std::string_view text) {
                                        for (const std::string& line : lines[stream - 1].Add(text))
                                          look(line);
                                      }}));
    for (counters::Lines& one : lines)
      if (const std::string line = one.Rest(); !line.empty()) look(line);
    log.End(read());
    if (log.steps().empty())
      notes.push_back(StrCat("no line of the program's output matches the marker '", marker_,
                             "'; compare it with what the program prints, and see that it does not keep its "
                             "lines back (stdbuf -oL)"));
    if (!context.json)
      for (const std::string& note : notes) PrintError(note);
    return Print(context.json ? StepJson(log, exit_code_, notes) : StrCat("\n", StepText(log)));
  }

  std::string interval_ = "1";
  int64_t count_ = 0;
  std::vector<std::string> devices_;
  std::vector<std::string> program_;
  std::string marker_;
  int exit_code_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeWatchCommand() { return std::make_unique<WatchCommand>(); }

}  // namespace weightcast::tools
