#include <algorithm>
#include <ctime>
#include <random>

#include "base/strings.h"
#include "plan/layout_builder.h"
#include "plan/planner.h"
#include "plan/table_format.h"
#include "plan/verify.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kColumns = 128;

/// Cuts `tensors` tensors along dimension 0 at random places into a box for each rank, and gives
/// the boxes to the ranks in random order: nothing that a pattern could describe.
Result<plan::Layout> IrregularLayout(int64_t tensors, int ranks, std::mt19937_64& random) {
  const int64_t rows = int64_t{64} * ranks;
  std::vector<std::vector<plan::Holding>> holdings(static_cast<size_t>(ranks));
  std::vector<int> order(static_cast<size_t>(ranks));
  for (int i = 0; i < ranks; ++i) order[static_cast<size_t>(i)] = i;
  std::vector<int64_t> cuts(static_cast<size_t>(ranks) + 1);
  std::vector<int64_t> places(static_cast<size_t>(rows) - 1);
  for (int64_t i = 1; i < rows; ++i) places[static_cast<size_t>(i) - 1] = i;
  for (int64_t t = 0; t < tensors; ++t) {
    const TensorInfo tensor{StrCat("layer.", t, ".weight"), DType::kBF16, {rows, kColumns}};
    // Distinct places, so that no rank's box is empty.
    for (size_t i = 0; i + 1 < order.size(); ++i)
      std::swap(places[i], places[i + random() % (places.size() - i)]);
    std::copy_n(places.begin(), order.size() - 1, cuts.begin() + 1);
    cuts.front() = 0;
    cuts.back() = rows;
    std::sort(cuts.begin(), cuts.end());
    std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < order.size(); ++i) {
      const Box box{{cuts[i], 0}, {cuts[i + 1] - cuts[i], kColumns}};
      holdings[static_cast<size_t>(order[i])].push_back({tensor, box});
    }
  }
  plan::LayoutBuilder builder(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    WC_RETURN_IF_ERROR(builder.AddRank(rank, holdings[static_cast<size_t>(rank)]));
  return builder.Build();
}

struct PlanTimes {
  int64_t boxes = 0;
  int64_t routes = 0;
  int64_t table_bytes = 0;
  double build = 0;
  double plan = 0;
  double verify = 0;
  double serialise = 0;
  double cpu = 0;  ///< Of plan, verify and serialise together: what a busy machine does not falsify.
  [[nodiscard]] double total() const { return plan + verify + serialise; }
};

double CpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

/// Seconds since `start`, which is moved to now.
double Lap(TimePoint& start) {
  const TimePoint now = Clock::now();
  return Seconds(now - std::exchange(start, now));
}

Result<PlanTimes> Measure(int64_t boxes, int ranks, plan::Strategy strategy) {
  std::mt19937_64 random(1);
  const int64_t boxes_of_tensor = int64_t{2} * ranks;
  const int64_t tensors = (boxes + boxes_of_tensor - 1) / boxes_of_tensor;
  PlanTimes times{.boxes = tensors * boxes_of_tensor};
  TimePoint start = Clock::now();
  WC_ASSIGN_OR_RETURN(const plan::Layout trainers, IrregularLayout(tensors, ranks, random));
  WC_ASSIGN_OR_RETURN(const plan::Layout inference, IrregularLayout(tensors, ranks, random));
  times.build = Lap(start);
  const double cpu_before = CpuSeconds();
  const NameRules rules;
  const plan::PlanRequest request{trainers, inference, rules, strategy};
  WC_ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(request));
  times.plan = Lap(start);
  times.routes = plan.report.routes;
  WC_RETURN_IF_ERROR(plan::Verify(request, plan.table));
  times.verify = Lap(start);
  const plan::TableEncoder encoder(trainers, inference, plan.table);
  using Role = plan::RankTable::Role;
  for (const Role role : {Role::kTrainer, Role::kInference}) {
    for (int rank = 0; rank < ranks; ++rank) {
      WC_ASSIGN_OR_RETURN(const std::string bytes, encoder.Encode(role, rank, /*epoch=*/1));
      times.table_bytes += static_cast<int64_t>(bytes.size());
    }
  }
  times.serialise = Lap(start);
  times.cpu = CpuSeconds() - cpu_before;
  return times;
}

class BenchPlanCommand : public Command {
 public:
  BenchPlanCommand()
      : Command({.name = "bench plan",
                 .summary = "Plans, verifies and serialises many irregular boxes",
                 .example = "  weightcast bench plan --boxes 1000000 --ranks 64\n"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--boxes", boxes_, 1, 100'000'000, "Boxes on both sides together");
    flags.Add("--ranks", ranks_, 1, 4096, "Trainers, and as many inference ranks");
  }
  Status Run(const Context& context) override {
    const auto strategy =
        plan::StrategyFromName(context.settings.strategy).value_or(plan::Strategy::kBalanced);
    WC_ASSIGN_OR_RETURN(const PlanTimes times, Measure(boxes_, static_cast<int>(ranks_), strategy));
    if (context.json)
      return Print(JsonLine({{"boxes", times.boxes},
                             {"routes", times.routes},
                             {"ranks", ranks_},
                             {"strategy", NameOf(strategy)},
                             {"table_bytes", times.table_bytes},
                             {"build_seconds", times.build},
                             {"plan_seconds", times.plan},
                             {"verify_seconds", times.verify},
                             {"serialise_seconds", times.serialise},
                             {"total_seconds", times.total()},
                             {"total_cpu_seconds", times.cpu}}));
    Table table({"step", "seconds"});
    table.Add({"plan", Decimal(times.plan, 3)});
    table.Add({"verify", Decimal(times.verify, 3)});
    table.Add({"serialise", Decimal(times.serialise, 3)});
    table.Add({"together", Decimal(times.total(), 3)});
    table.Add({"of the core", Decimal(times.cpu, 3)});
    return Print(StrCat(Grouped(times.boxes), " irregular boxes, ", Grouped(times.routes), " routes, ",
                        ranks_, " trainers, ", ranks_, " inference ranks, one core\n", table.ToString(),
                        "(not counted: the layouts, made in ", Decimal(times.build, 3), " s)\n"));
  }

 private:
  int64_t boxes_ = 1'000'000;
  int64_t ranks_ = 64;
};

}  // namespace

std::unique_ptr<Command> MakeBenchPlanCommand() { return std::make_unique<BenchPlanCommand>(); }

}  // namespace weightcast::tools
