#include <poll.h>

#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/files.h"
#include "plan/models.h"
#include "tools/command.h"
#include "tools/common/in_file.h"
#include "tools/common/json.h"
#include "tools/common/model.h"
#include "tools/common/output.h"
#include "tools/common/place.h"
#include "tools/common/stop.h"
#include "tools/worker/checkpoint_folders.h"
#include "tools/worker/file_shards.h"
#include "tools/worker/worker_loop.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

constexpr double kIdleSeconds = 0.3;
constexpr double kLookSeconds = 1;
constexpr int kBusyMilliseconds = 20;
constexpr size_t kMaxRulesFile = size_t{16} << 20;

/// A trainer whose weights lie in safetensors files.
class TrainerCommand : public Command {
 public:
  TrainerCommand()
      : Command(
            {.name = "trainer",
             .summary = "Publishes safetensors checkpoints from a folder",
             .example =
                 R"(  weightcast trainer --controller head:29750 --rank 0 --world-size 2 --checkpoint /ckpt/gpt2
  weightcast trainer --rank 0 --checkpoint /ckpt/run7 --watch    each new sub-folder, such as
                                                 /ckpt/run7/step-100, once it is renamed into place
  weightcast trainer --rank 0 --checkpoint /ckpt/gpt2 --memory cuda --device 1    sent from a GPU
)"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--rank", rank_, 0, (1 << 20) - 1, "This trainer's number");
    flags.Add("--world-size", world_size_, 1, 1 << 20, "How many trainers there are");
    flags.Add("--checkpoint", checkpoint_, "DIR",
              "The checkpoint, or with --watch the folder of checkpoints. The files are read when they are "
              "sent: replace them by rename, never in place");
    flags.Require("--checkpoint");
    flags.Add("--watch", watch_,
              "Publish the newest sub-folder, then each new one; its version is the number "
              "at the end of its name");
    flags.Add("--version", version_, 0, int64_t{1} << 62, "Version of the checkpoint, without --watch");
    flags.Add("--private-copy", private_copy_,
              "Read each checkpoint into memory (as large as what this trainer sends) and send from there");
    place_.Declare(flags, "; with a GPU's each checkpoint is read into it, as with --private-copy");
    flags.AddChoice("--layout", layout_, {"ddp", "fsdp"},
                    "What this trainer sends from: everything, or its shards of dimension 0");
    flags.Add("--rules", rules_file_, "FILE", "Name rules JSON; the same at every trainer");
    flags.Add("--model-name", model_, "NAME", "Under which engines ask for it");
    flags.Add("--exit-after", exit_after_, 0, int64_t{1} << 62,
              "End after so many versions are committed; 0: stay, for engines that join later");
  }

  Status Run(const Context& context) override {
    SetLogPrefix(StrCat("trainer ", rank_));
    WC_ASSIGN_OR_RETURN(shard_place_, place_.Parse());
    if (private_copy_ && shard_place_.kind != "host")
      return {Code::kInvalidArgument,
              "--private-copy is for host memory; leave it out, as --memory cuda makes a copy anyway"};
    if (!rules_file_.empty()) {
      WC_ASSIGN_OR_RETURN(const std::string text, checkpoint::ReadTextFile(rules_file_, kMaxRulesFile));
      WC_ASSIGN_OR_RETURN(rules_, InFile(rules_file_, ParseRules(text)));
    }
    std::optional<VersionFolders> folders;
    std::optional<FoundVersion> found;
    if (watch_) {
      WC_ASSIGN_OR_RETURN(folders, VersionFolders::Open(checkpoint_, /*numbered=*/world_size_ > 1));
    } else {
      WC_ASSIGN_OR_RETURN(auto opened, checkpoint::Checkpoint::Open(checkpoint_));
      found = FoundVersion{version_, checkpoint_, std::move(opened)};
    }
    WorkerOptions options = BasicOptions(context);
    options.rank = static_cast<uint32_t>(rank_);
    options.world_size = static_cast<uint32_t>(world_size_);
    options.model = model_;
    options.patient = true;
    json_ = {{"rank", rank_}, {"versions", Json::array()}};
    Status status = Attend(context, std::move(options), folders, std::move(found));
    // Being asked to end is how a trainer that stays ends well.
    if (!status.ok() && !(StopSignal() != 0 && exit_after_ == 0)) return status;
    return context.json ? Print(JsonLine(json_)) : Status::Ok();
  }

 private:
  Status Attend(const Context& context, WorkerOptions options, std::optional<VersionFolders>& folders,
                std::optional<FoundVersion> found) {
    WC_ASSIGN_OR_RETURN(const auto trainer, Trainer::Connect(std::move(options)));
    return Serve(context, *trainer, folders, std::move(found));
  }

  Status Serve(const Context& context, Trainer& trainer, std::optional<VersionFolders>& folders,
               std::optional<FoundVersion> found) {
    int64_t last = -1;
    for (int64_t committed = 0; exit_after_ == 0 || committed < exit_after_;) {
      while (!found) {
        WC_RETURN_IF_ERROR(CheckStop());
        WC_RETURN_IF_ERROR(LookAround(trainer));
        WC_ASSIGN_OR_RETURN(found, NextVersion(folders, last));
      }
      last = found->version;
      Status status = PublishOne(context, trainer, *found);
      if (status.ok()) ++committed;
      // A later version may do better; a single one has no later.
      if (!status.ok() && (!watch_ || StopSignal() != 0)) return status;
      if (!status.ok())
        WC_LOG(kError, "version ", last,
               " was not published, the next one is waited for: ", status.message());
      found.reset();
    }
    return Status::Ok();
  }

  /// What is held is not offered any more to engines that join later, once its files have changed.
  void WithdrawIfChanged() {
    if (held_.update == nullptr) return;
    const Status status = held_.shards->Check();
    if (status.ok()) return;
    WC_LOG(kError, "version ", ToString(held_.update->version()), " is withdrawn: ", status.message());
    held_.update->Cancel();
    held_.update = nullptr;
  }

  /// Between updates: tells what has become of engines. Waits while there is no controller.
  Status LookAround(Trainer& trainer) {
    if (Clock::now() < next_look_) return Status::Ok();
    WithdrawIfChanged();
    WC_ASSIGN_OR_RETURN(const auto engines, trainer.Engines());
    next_look_ = Clock::now() + FromSeconds(kLookSeconds);
    for (const EngineStatus& engine : engines) {
      std::string& told = told_[engine.name];
      if (std::exchange(told, engine.last_error) != engine.last_error && !engine.last_error.empty())
        WC_LOG(kWarning, "engine ", engine.name, " is ", NameOf(engine.state), ": ", engine.last_error);
    }
    return Status::Ok();
  }

  /// Waits a moment for one; a trainer that does not watch has no other.
  static Result<std::optional<FoundVersion>> NextVersion(std::optional<VersionFolders>& folders,
                                                         int64_t last) {
    if (folders) return folders->Next(last, FromSeconds(kIdleSeconds));
    pollfd stop{StopDescriptor(), POLLIN, 0};
    poll(&stop, 1, static_cast<int>(kIdleSeconds * 1000));
    return std::optional<FoundVersion>();
  }

  Status PublishOne(const Context& context, Trainer& trainer, FoundVersion& found) {
    Cluster cluster;
    cluster.trainers = world_size_;
    cluster.trainer_layout = layout_;
    WC_ASSIGN_OR_RETURN(const plan::Layout layout, TrainerLayout(cluster, found.checkpoint.tensors()));
    WC_ASSIGN_OR_RETURN(auto shards,
                        FileShards::Open(std::move(found.checkpoint), layout, static_cast<int>(rank_)));
    if (private_copy_) WC_RETURN_IF_ERROR(shards->CopyToMemory());
    if (shard_place_.kind != "host") {
      WC_RETURN_IF_ERROR(shards->CopyToDevice(shard_place_, context.settings));
    }
    WC_RETURN_IF_ERROR(RegisterWhenFree(trainer, shards));
    // The one before is no longer read.
    held_ = {.shards = shards, .update = nullptr};
    WC_ASSIGN_OR_RETURN(held_.update, trainer.Publish(found.version, Hold::kUntilNext));
    WC_ASSIGN_OR_RETURN(const UpdateStats stats, held_.update->Wait(kNever));
    for (const std::string& line : trainer.ConnectionMap()) WC_LOG(kInfo, line);
    return Report(context, found, stats);
  }

  /// An engine that came late may still be filled from the version before.
  Status RegisterWhenFree(Trainer& trainer, const std::shared_ptr<FileShards>& shards) {
    for (;;) {
      Status status = trainer.Register({.shards = shards->shards()},
                                       {.rules = rules_, .reader = shards->in_memory() ? nullptr : shards});
      if (status.code() != Code::kUnavailable) return status;
      pollfd stop{StopDescriptor(), POLLIN, 0};
      poll(&stop, 1, kBusyMilliseconds);
      WC_RETURN_IF_ERROR(CheckStop());
      WC_RETURN_IF_ERROR(LookAround(trainer));
    }
  }

  Status Report(const Context& context, const FoundVersion& found, const UpdateStats& stats) {
    const double rate = stats.seconds > 0 ? static_cast<double>(stats.bytes) / stats.seconds / 1e9 : 0;
    if (!context.json) {
      return Print(StrCat("version ", found.version, " committed: ", Grouped(stats.bytes), " bytes to ",
                          Count(static_cast<int64_t>(stats.engines.size()), "engine"), " in ",
                          Decimal(stats.seconds, 3), " s, ", Decimal(rate, 2), " GB/s (", found.path.string(),
                          ")\n"));
    }
    Json engines = Json::array();
    for (const EngineStats& engine : stats.engines) engines.push_back(engine.engine);
    json_["versions"].push_back({{"version", found.version},
                                 {"path", found.path.string()},
                                 {"bytes", stats.bytes},
                                 {"seconds", stats.seconds},
                                 {"gb_per_s", rate},
                                 {"engines", std::move(engines)}});
    return Status::Ok();
  }

  int64_t rank_ = 0;
  int64_t world_size_ = 1;
  std::string checkpoint_;
  bool watch_ = false;
  int64_t version_ = 1;
  std::string layout_ = "ddp";
  std::string rules_file_;
  NameRules rules_;
  std::string model_ = "policy";
  int64_t exit_after_ = 0;
  Json json_;
  TimePoint next_look_;
  std::map<std::string, std::string> told_;  ///< Last error by engine.
  bool private_copy_ = false;
  PlaceFlags place_;
  ShardPlace shard_place_;
  /// What is registered and published last; engines that join later get it too.
  struct Held {
    std::shared_ptr<FileShards> shards;
    std::shared_ptr<Update> update;
  };
  Held held_;
};

}  // namespace

std::unique_ptr<Command> MakeTrainerCommand() { return std::make_unique<TrainerCommand>(); }

}  // namespace weightcast::tools
