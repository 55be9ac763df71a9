#include <algorithm>

#include "base/statistics.h"
#include "base/strings.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "tools/demo/run.h"

namespace weightcast::tools {
namespace {

/// One way of moving the weights, and how long it took.
struct UpdateTimes {
  int64_t trainers = 0;
  std::string transport;
  std::string landing;
  uint64_t bytes = 0;
  double first = 0;   ///< The first update, with cold caches.
  double median = 0;  ///< Of those after it.
  double best = 0;
  [[nodiscard]] double gb_per_s() const { return static_cast<double>(bytes) / median / 1e9; }
};

UpdateTimes Summarise(const DemoReport& report, const DemoOptions& options) {
  UpdateTimes times{
      .trainers = options.cluster.trainers, .transport = report.transport, .landing = options.landing};
  std::vector<double> seconds;
  seconds.reserve(report.updates.size());
  for (const DemoUpdate& update : report.updates) seconds.push_back(update.seconds);
  times.bytes = report.updates.front().bytes;
  times.first = seconds.front();
  seconds.erase(seconds.begin());
  times.median = Median(seconds);
  times.best = *std::min_element(seconds.begin(), seconds.end());
  return times;
}

class BenchUpdateCommand : public Command {
 public:
  BenchUpdateCommand()
      : Command({.name = "bench update",
                 .summary = "Times whole updates, as the demo makes them",
                 .example = R"(  weightcast bench update --transports shm,tcp --landings in_place,shadow
  weightcast bench update --model qwen2.5-0.5b --versions 11
  weightcast bench update --model qwen2.5-0.5b --sweep-trainers 1,2,4,8,16
)"}) {
    options_.versions = 7;
  }
  void Declare(Flags& flags) override {
    DeclareDemoFlags(flags, options_);
    flags.AddList("--transports", transports_, "NAMES", "Measured one after the other");
    flags.AddList("--landings", landings_, "NAMES", "Measured one after the other");
    flags.AddList("--sweep-trainers", sweep_, "NUMBERS",
                  "How time and bandwidth grow with the trainers, which share each engine's bytes: measured "
                  "with so many, one after the other; instead of --trainers");
  }
  Status Run(const Context& context) override {
    if (options_.versions < 2) {
      return Error(Code::kInvalidArgument, "--versions is ", options_.versions,
                   "; it must be at least 2: the first update is counted apart");
    }
    WC_ASSIGN_OR_RETURN(const std::vector<DemoOptions> ways, Ways());
    std::vector<UpdateTimes> all;
    ProgressBar bar;
    const auto parts = static_cast<double>(transports_.size() * ways.size());
    for (const std::string& transport : transports_) {
      Context one = context;
      one.overrides["transport"] = transport;
      WC_ASSIGN_OR_RETURN(one.settings, Settings::From(one.overrides));
      for (const DemoOptions& options : ways) {
        DemoWatcher watcher;
        watcher.on_step = [&](double part, std::string_view text) {
          bar.Show((static_cast<double>(all.size()) + part) / parts,
                   StrCat(transport, " ", options.landing, ": ", text));
        };
        WC_ASSIGN_OR_RETURN(const DemoReport report, RunDemo(one, options, /*keep=*/false, watcher));
        all.push_back(Summarise(report, options));
      }
    }
    bar.Clear();
    return Print(context.json ? AsJson(all) : AsText(all));
  }

 private:
  /// All that is measured over each transport.
  Result<std::vector<DemoOptions>> Ways() const {
    std::vector<DemoOptions> ways;
    for (const std::string& landing : landings_) {
      if (landing != "in_place" && landing != "shadow")
        return Error(Code::kInvalidArgument, "--landings has '", landing, "'; allowed: in_place, shadow");
      DemoOptions options = options_;
      options.landing = landing;
      if (sweep_.empty()) ways.push_back(options);
      for (const std::string& trainers : sweep_) {
        const auto count = ParseNumber<int64_t>(trainers);
        if (!count || *count < 1) {
          return Error(Code::kInvalidArgument, "--sweep-trainers: '", trainers,
                       "' is not a number of trainers; give integers from 1, such as 1,2,4");
        }
        options.cluster.trainers = *count;
        ways.push_back(options);
      }
    }
    return ways;
  }

  std::string AsText(const std::vector<UpdateTimes>& all) const {
    Table table({"trainers", "transport", "landing", "bytes", "first s", "median s", "best s", "GB/s"});
    for (const UpdateTimes& one : all) {
      table.Add({Grouped(static_cast<uint64_t>(one.trainers)), one.transport, one.landing, Grouped(one.bytes),
                 Decimal(one.first, 4), Decimal(one.median, 4), Decimal(one.best, 4),
                 Decimal(one.gb_per_s(), 2)});
    }
    const std::string cluster = sweep_.empty() ? StrCat(", ", Describe(options_.cluster)) : "";
    return StrCat(options_.model, cluster, ", median of ", options_.versions - 1,
                  " updates after the first\n", table.ToString());
  }
  std::string AsJson(const std::vector<UpdateTimes>& all) const {
    Json json{{"model", options_.model},
              {"trainers", options_.cluster.trainers},
              {"inference", options_.cluster.inference},
              {"results", Json::array()}};
    for (const UpdateTimes& one : all)
      json["results"].push_back({{"trainers", one.trainers},
                                 {"transport", one.transport},
                                 {"landing", one.landing},
                                 {"bytes", one.bytes},
                                 {"first_seconds", one.first},
                                 {"median_seconds", one.median},
                                 {"best_seconds", one.best},
                                 {"gb_per_s", one.gb_per_s()}});
    return JsonLine(json);
  }

  DemoOptions options_;
  std::vector<std::string> transports_{"shm", "tcp"};
  std::vector<std::string> landings_{"in_place"};
  std::vector<std::string> sweep_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchUpdateCommand() { return std::make_unique<BenchUpdateCommand>(); }

}  // namespace weightcast::tools
