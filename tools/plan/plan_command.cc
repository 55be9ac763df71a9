#include <chrono>
#include <filesystem>
#include <iterator>

#include "base/available.h"
#include "base/strings.h"
#include "checkpoint/files.h"
#include "plan/layout_json.h"
#include "plan/models.h"
#include "plan/planner.h"
#include "plan/table_format.h"
#include "plan/verify.h"
#include "tools/command.h"
#include "tools/common/files.h"
#include "tools/common/in_file.h"
#include "tools/common/json.h"
#include "tools/common/model.h"
#include "tools/common/output.h"
#include "weightcast/clock.h"
#include "weightcast/rules.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMaxJsonFile = size_t{1} << 30;

/// Both sides and how names are mapped: what is planned.
struct Inputs {
  plan::Layout trainers;
  plan::Layout inference;
  NameRules rules;
  std::string what;
};

class PlanCommand : public Command {
 public:
  PlanCommand()
      : Command({.name = "plan",
                 .summary = "Plans who sends what to whom: routes, balance, lower bound, table files",
                 .example = R"(  weightcast plan --model qwen2.5-0.5b --trainers 8 --inference 8
  weightcast plan --layout-trainers t.json --layout-inference i.json --rules r.json --tables out
  weightcast plan --read out/trainer-00000.table
)"}) {}

  void Declare(Flags& flags) override {
    flags.AddChoice("--model", model_, plan::PresetNames(), "Preset model");
    flags.Add("--dtype", dtype_, "DTYPE", "Of the preset model");
    flags.Add("--trainers", cluster_.trainers, 1, plan::kMaxRanks, "Trainer ranks");
    flags.Add("--inference", cluster_.inference, 1, plan::kMaxRanks, "Inference ranks of all engines");
    flags.Add("--engines", cluster_.engines, 0, plan::kMaxRanks,
              "Engines of equal size with TP shards; 0: each rank is one");
    flags.AddChoice("--trainer-layout", cluster_.trainer_layout, {"ddp", "fsdp"},
                    "Full replicas or dim-0 shards");
    flags.Add("--layout-trainers", trainers_file_, "FILE", "Layout JSON instead of --model (docs/layout.md)");
    flags.Add("--layout-inference", inference_file_, "FILE", "Layout JSON instead of --model");
    flags.Add("--rules", rules_file_, "FILE", "Name rules JSON");
    flags.Add("--routes", shown_routes_, 0, 1 << 30, "Print the first N routes");
    flags.Add("--read", read_file_, "FILE", "Show a table file instead of planning");
  }

  Status Run(const Context& context) override {
    if (!read_file_.empty()) return ShowTable(context);
    WC_ASSIGN_OR_RETURN(const Inputs inputs, Load());
    const auto strategy =
        plan::StrategyFromName(context.settings.strategy).value_or(plan::Strategy::kBalanced);
    const plan::PlanRequest request{inputs.trainers, inputs.inference, inputs.rules, strategy,
                                    MemoryToUse(context.settings.plan_memory)};
    const TimePoint start = Clock::now();
    WC_ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(request));
    const TimePoint planned = Clock::now();
    WC_RETURN_IF_ERROR(plan::Verify(request, plan.table));
    const double verify_seconds = Seconds(Clock::now() - planned);
    if (!context.settings.tables.empty()) WC_RETURN_IF_ERROR(WriteTables(context, inputs, plan.table));
    const double plan_seconds = Seconds(planned - start);
    return Print(context.json ? AsJson(inputs, plan, strategy, plan_seconds, verify_seconds)
                              : AsText(inputs, plan, strategy, plan_seconds, verify_seconds));
  }

 private:
  Result<Inputs> Load() const {
    Inputs inputs;
    if (!rules_file_.empty()) {
      WC_ASSIGN_OR_RETURN(const std::string text, checkpoint::ReadTextFile(rules_file_, kMaxJsonFile));
      WC_ASSIGN_OR_RETURN(inputs.rules, InFile(rules_file_, ParseRules(text)));
    }
    if (trainers_file_.empty() != inference_file_.empty()) {
      return Status(Code::kInvalidArgument,
                    "--layout-trainers and --layout-inference belong together; give both");
    }
    if (!trainers_file_.empty()) {
      WC_ASSIGN_OR_RETURN(inputs.trainers, ReadLayout(trainers_file_));
      WC_ASSIGN_OR_RETURN(inputs.inference, ReadLayout(inference_file_));
      inputs.what = StrCat(trainers_file_, " -> ", inference_file_);
      return inputs;
    }
    WC_RETURN_IF_ERROR(CheckCluster(cluster_));
    WC_ASSIGN_OR_RETURN(const DType dtype, ParseDType(dtype_));
    WC_ASSIGN_OR_RETURN(const auto tensors, plan::PresetModel(model_, dtype));
    WC_ASSIGN_OR_RETURN(inputs.trainers, TrainerLayout(cluster_, tensors));
    plan::UnfusedModel model{.tensors = tensors, .rules = {}};
    if (cluster_.ranks_per_engine() > 1) model = plan::Unfuse(tensors);
    std::move(model.rules.rules.begin(), model.rules.rules.end(), std::back_inserter(inputs.rules.rules));
    WC_ASSIGN_OR_RETURN(inputs.inference,
                        plan::TpLayout(model.tensors, cluster_.ranks_per_engine(), cluster_.engine_count()));
    inputs.what = StrCat(model_, " ", NameOf(dtype), ", ", Describe(cluster_));
    return inputs;
  }

  static Result<plan::Layout> ReadLayout(const std::string& file) {
    WC_ASSIGN_OR_RETURN(const std::string text, checkpoint::ReadTextFile(file, kMaxJsonFile));
    return InFile(file, plan::ParseLayout(text));
  }

  static Status WriteTables(const Context& context, const Inputs& inputs, const plan::RoutingTable& table) {
    const std::filesystem::path folder = context.settings.tables;
    WC_RETURN_IF_ERROR(checkpoint::MakeFolders(folder, false));
    const plan::TableEncoder encoder(inputs.trainers, inputs.inference, table);
    using Role = plan::RankTable::Role;
    for (const auto& [role, ranks] : {std::pair{Role::kTrainer, inputs.trainers.ranks()},
                                      std::pair{Role::kInference, inputs.inference.ranks()}}) {
      for (int rank = 0; rank < ranks; ++rank) {
        WC_ASSIGN_OR_RETURN(const std::string bytes, encoder.Encode(role, rank, /*epoch=*/1));
        std::string number = StrCat(rank);
        number.insert(0, 5 - std::min<size_t>(5, number.size()), '0');
        const char* prefix = role == Role::kTrainer ? "trainer-" : "inference-";
        WC_RETURN_IF_ERROR(WriteFileAtomically(folder / StrCat(prefix, number, ".table"), bytes));
      }
    }
    return Status::Ok();
  }

  std::string AsText(const Inputs& inputs, const plan::Plan& plan, plan::Strategy strategy,
                     double plan_seconds, double verify_seconds) const {
    const plan::PlanReport& report = plan.report;
    std::string out = StrCat(inputs.what, ", strategy ", NameOf(strategy), "\n");
    out += StrCat("routes       ", Grouped(report.routes), "\n");
    out += StrCat("bytes        ", Grouped(report.total_bytes), "\n");
    out += StrCat("lower bound  ", Grouped(report.lower_bound_bytes), " bytes over the busiest link\n");
    out += StrCat("this plan    ", Grouped(report.makespan_bytes), " bytes over the busiest link\n");
    out += StrCat("imbalance    ", Decimal(report.sender_imbalance, 4), " (busiest sender / mean)\n");
    out += StrCat("planned in   ", Decimal(plan_seconds, 3), " s, verified in ", Decimal(verify_seconds, 3),
                  " s\n\n");
    Table ranks({"rank", "trainer sends", "inference receives"});
    const size_t rows = std::max(report.sender_bytes.size(), report.receiver_bytes.size());
    const auto cell = [](const std::vector<int64_t>& bytes, size_t rank) {
      return rank < bytes.size() ? Grouped(bytes[rank]) : std::string("-");
    };
    for (size_t rank = 0; rank < rows; ++rank)
      ranks.Add({StrCat(rank), cell(report.sender_bytes, rank), cell(report.receiver_bytes, rank)});
    out += ranks.ToString();
    if (shown_routes_ > 0) out += "\n" + RouteTable(inputs, plan.table);
    return out;
  }

  std::string RouteTable(const Inputs& inputs, const plan::RoutingTable& table) const {
    Table routes({"route", "trainer", "inference", "tensor", "box"});
    for (int64_t i = 0; i < std::min(shown_routes_, table.size()); ++i) {
      const plan::Route route = table.At(i);
      routes.Add({StrCat(i), StrCat(route.src_rank), StrCat(route.dst_rank),
                  inputs.trainers.tensor(route.src_tensor).name, ToString(route.src_box)});
    }
    return routes.ToString();
  }

  std::string AsJson(const Inputs& inputs, const plan::Plan& plan, plan::Strategy strategy,
                     double plan_seconds, double verify_seconds) const {
    const plan::PlanReport& report = plan.report;
    Json json{{"trainers", inputs.trainers.ranks()},
              {"inference", inputs.inference.ranks()},
              {"strategy", NameOf(strategy)},
              {"tensors", inputs.inference.tensors()},
              {"routes", report.routes},
              {"bytes", report.total_bytes},
              {"sender_bytes", report.sender_bytes},
              {"receiver_bytes", report.receiver_bytes},
              {"sender_imbalance", report.sender_imbalance},
              {"lower_bound_bytes", report.lower_bound_bytes},
              {"makespan_bytes", report.makespan_bytes},
              {"plan_seconds", plan_seconds},
              {"verify_seconds", verify_seconds}};
    if (shown_routes_ > 0) json["first_routes"] = Json::array();
    for (int64_t i = 0; i < std::min(shown_routes_, plan.table.size()); ++i) {
      const plan::Route route = plan.table.At(i);
      json["first_routes"].push_back({{"trainer", route.src_rank},
                                      {"inference", route.dst_rank},
                                      {"tensor", inputs.trainers.tensor(route.src_tensor).name},
                                      {"box", ToString(route.src_box)}});
    }
    return JsonLine(json);
  }

  Status ShowTable(const Context& context) const {
    WC_ASSIGN_OR_RETURN(const std::string bytes, checkpoint::ReadTextFile(read_file_, plan::kMaxTableBytes));
    auto decoded = InFile(read_file_, plan::DecodeRankTable(bytes));
    if (const Status& why = decoded.status(); why.code() == Code::kCorrupt)
      return Error(why.code(), why.message(), "; write it again with weightcast plan --tables");
    WC_ASSIGN_OR_RETURN(const plan::RankTable table, std::move(decoded));
    const bool trainer = table.role == plan::RankTable::Role::kTrainer;
    if (context.json)
      return Print(JsonLine({{"role", trainer ? "trainer" : "inference"},
                             {"rank", table.rank},
                             {"epoch", table.epoch},
                             {"trainers", table.source_ranks},
                             {"inference", table.destination_ranks},
                             {"routes", table.routes.size()},
                             {"peers", table.peers}}));
    Table routes({"slot", trainer ? "to" : "from", "tensor", "box", "shape"});
    for (const auto& route : table.routes) {
      const auto& shard = table.source_shards[route.src_shard];
      const TensorInfo& tensor = table.source_tensors[static_cast<size_t>(shard.tensor)];
      routes.Add({StrCat(route.slot), StrCat(route.peer), tensor.name, ToString(route.src_box),
                  ToString(tensor.shape)});
    }
    return Print(StrCat(trainer ? "trainer " : "inference rank ", table.rank, " of ", table.source_ranks,
                        " trainers and ", table.destination_ranks, " inference ranks\n", routes.ToString()));
  }

  std::string model_ = "gpt2";
  std::string dtype_ = "bf16";
  Cluster cluster_;
  std::string trainers_file_;
  std::string inference_file_;
  std::string rules_file_;
  int64_t shown_routes_ = 0;
  std::string read_file_;
};

}  // namespace

std::unique_ptr<Command> MakePlanCommand() { return std::make_unique<PlanCommand>(); }

}  // namespace weightcast::tools
