#include <algorithm>

#include "base/strings.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "tools/demo/run.h"
#include "tools/demo/weights.h"

namespace weightcast::tools {
namespace {

// More senders than this are summed up in the table; the JSON has the slowest.
constexpr size_t kShownSenders = 8;

std::string Shares(const DemoUpdate& update) {
  uint64_t total = 0;
  for (const uint64_t bytes : update.sender_bytes) total += bytes;
  if (total == 0) return "-";
  const auto percent = [total](uint64_t bytes) {
    return Decimal(100.0 * static_cast<double>(bytes) / static_cast<double>(total), 2);
  };
  if (update.sender_bytes.size() > kShownSenders) {
    const auto [least, most] = std::minmax_element(update.sender_bytes.begin(), update.sender_bytes.end());
    return StrCat(update.sender_bytes.size(), " senders: ", percent(*least), " to ", percent(*most), " %");
  }
  return Join(update.sender_bytes, " / ", percent) + " %";
}

std::string AsText(const DemoReport& report) {
  Table table({"version", "bytes", "seconds", "GB/s", "share of each sender"});
  for (const DemoUpdate& update : report.updates) {
    table.Add({StrCat(update.version), Grouped(update.bytes), Decimal(update.seconds, 4),
               Decimal(update.gb_per_s(), 2), Shares(update)});
  }
  return StrCat("\n", table.ToString(), "\nover ", report.transport,
                "; every byte of every version compared with its formula by each inference process\n",
                "bit-exact\n");
}

std::string AsJson(const DemoReport& report, const DemoOptions& options) {
  Json json{{"trainers", options.cluster.trainers},
            {"inference", options.cluster.inference},
            {"transport", report.transport},
            {"tensors", report.tensors},
            {"bytes_per_replica", report.bytes_per_replica},
            {"updates", Json::array()}};
  for (const DemoUpdate& update : report.updates)
    json["updates"].push_back({{"version", update.version},
                               {"seconds", update.seconds},
                               {"bytes", update.bytes},
                               {"gb_per_s", update.gb_per_s()},
                               {"sender_bytes", update.sender_bytes},
                               {"bit_exact", true}});
  json["bit_exact"] = true;
  return JsonLine(json);
}

class DemoCommand : public Command {
 public:
  DemoCommand()
      : Command(
            {.name = "demo",
             .summary =
                 "Moves a model from trainer to inference processes on this machine and checks every byte",
             .example =
                 R"(  weightcast demo                                  2 trainers, 2 engines, GPT-2, 5 versions
  weightcast demo --trainers 16 --inference 8      the seeds' cluster
  weightcast demo --trainers 32 --inference 32 --trainer-layout fsdp
  weightcast demo --memory cuda                    weights in the memory of GPUs
  weightcast demo --memory cuda --trainer-devices 0 --inference-devices 1,2
  weightcast demo --checkpoint ~/models/gpt2 --output /tmp/out --versions 2
)"}) {}
  void Declare(Flags& flags) override {
    DeclareDemoFlags(flags, options_);
    flags.Add("--keep", keep_, "Keep the temporary folder with the model file and the logs");
  }
  Status Run(const Context& context) override {
    WC_RETURN_IF_ERROR(CheckCluster(options_.cluster));
    WC_RETURN_IF_ERROR(CheckDevices(options_));
    WC_ASSIGN_OR_RETURN(const auto tensors, DemoTensors(options_));
    const std::string what =
        options_.checkpoint.empty() ? StrCat(options_.model, " ", options_.dtype) : options_.checkpoint;
    DemoWatcher watcher;
    ProgressBar bar;
    // With --json standard output belongs to the object alone.
    const auto tell = [this, &context, &bar](std::string_view line) {
      bar.Clear();
      if (!context.json) said_ = Print(StrCat(line, "\n"));
    };
    tell(StrCat(what, ": ", Count(static_cast<int64_t>(tensors.size()), "tensor"), ", ",
                Grouped(static_cast<uint64_t>(BytesOf(tensors))), " bytes a replica; ",
                Describe(options_.cluster), "; ", options_.landing));
    watcher.on_line = tell;
    watcher.on_step = [&bar](double part, std::string_view text) { bar.Show(part, text); };
    const auto report = RunDemo(context, options_, keep_, watcher);
    bar.Clear();
    WC_RETURN_IF_ERROR(report.status());
    WC_RETURN_IF_ERROR(said_);
    return Print(context.json ? AsJson(*report, options_) : AsText(*report));
  }

 private:
  DemoOptions options_;
  bool keep_ = false;
  Status said_;  ///< Of the lines printed on the way.
};

}  // namespace

std::unique_ptr<Command> MakeDemoCommand() { return std::make_unique<DemoCommand>(); }

}  // namespace weightcast::tools
