#include <algorithm>

#include "base/statistics.h"
#include "base/strings.h"
#include "plan/models.h"
#include "tools/bench/register.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kMostWorkers = 4096;

class BenchRegisterCommand : public Command {
 public:
  BenchRegisterCommand()
      : Command(
            {.name = "bench register",
             .summary = "Times many workers from their Hello to their routing tables",
             .example =
                 R"(  weightcast bench register                               128 trainers, 128 engines, one controller
  weightcast bench register --engines 16 --trainer-layout fsdp
)",
             .hidden = true}) {}
  void Declare(Flags& flags) override {
    Cluster& cluster = case_.cluster;
    flags.Add("--trainers", cluster.trainers, 1, kMostWorkers, "Simulated trainers");
    flags.Add("--inference", cluster.inference, 1, kMostWorkers, "Simulated inference ranks of all engines");
    flags.Add("--engines", cluster.engines, 0, kMostWorkers,
              "Engines of equal size with TP shards; 0: each rank is one");
    flags.AddChoice("--trainer-layout", cluster.trainer_layout, {"ddp", "fsdp"},
                    "Full replicas or dim-0 shards");
    flags.AddChoice("--model", case_.model, plan::PresetNames(), "Whose shards are registered");
    flags.Add("--dtype", case_.dtype, "DTYPE", "Of the model");
    flags.Add("--processes", case_.processes, 1, 256, "Among which the workers are divided");
    flags.Add("--rounds", rounds_, 1, 1000, "With a fresh controller each");
  }
  Status Run(const Context& context) override {
    case_.processes = std::min(case_.processes, case_.workers());
    std::vector<RegisterTimes> all;
    ProgressBar bar;
    while (static_cast<int64_t>(all.size()) < rounds_) {
      WC_ASSIGN_OR_RETURN(const RegisterTimes times, MeasureRegister(case_, context));
      all.push_back(times);
      bar.Show(static_cast<double>(all.size()) / static_cast<double>(rounds_),
               Count(case_.workers(), "worker"));
    }
    bar.Clear();
    return Print(context.json ? AsJson(all) : AsText(all));
  }

 private:
  static std::vector<double> SecondsOf(const std::vector<RegisterTimes>& all) {
    std::vector<double> seconds;
    seconds.reserve(all.size());
    for (const RegisterTimes& one : all) seconds.push_back(one.seconds);
    return seconds;
  }

  std::string AsText(const std::vector<RegisterTimes>& all) const {
    const auto seconds = SecondsOf(all);
    Table table({"workers", "plans", "routes", "bytes of tables", "median s", "least s", "most s"});
    const RegisterTimes& last = all.back();
    table.Add({StrCat(case_.workers()), StrCat(last.plans), Grouped(last.routes), Grouped(last.table_bytes),
               Decimal(Median(seconds), 3), Decimal(*std::min_element(seconds.begin(), seconds.end()), 3),
               Decimal(*std::max_element(seconds.begin(), seconds.end()), 3)});
    return StrCat(case_.model, ", ", Describe(case_.cluster), ", ", rounds_,
                  " rounds; from the first Hello to the last table\n", table.ToString());
  }

  std::string AsJson(const std::vector<RegisterTimes>& all) const {
    const auto seconds = SecondsOf(all);
    const RegisterTimes& last = all.back();
    return JsonLine({{"model", case_.model},
                     {"workers", case_.workers()},
                     {"trainers", case_.cluster.trainers},
                     {"inference", case_.cluster.inference},
                     {"engines", case_.cluster.engine_count()},
                     {"processes", case_.processes},
                     {"rounds", rounds_},
                     {"plans", last.plans},
                     {"routes", last.routes},
                     {"table_bytes", last.table_bytes},
                     {"median_seconds", Median(seconds)},
                     {"least_seconds", *std::min_element(seconds.begin(), seconds.end())},
                     {"most_seconds", *std::max_element(seconds.begin(), seconds.end())}});
  }

  RegisterCase case_;
  int64_t rounds_ = 5;
};

}  // namespace

std::unique_ptr<Command> MakeBenchRegisterCommand() { return std::make_unique<BenchRegisterCommand>(); }

}  // namespace weightcast::tools
