#include <filesystem>

#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/version_folder.h"
#include "plan/models.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/model.h"
#include "tools/common/output.h"
#include "tools/common/place.h"
#include "tools/common/shards.h"
#include "tools/common/stop.h"
#include "tools/worker/versions.h"
#include "tools/worker/worker_loop.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

/// An inference rank that writes what it receives to files.
class InferenceCommand : public Command {
 public:
  InferenceCommand()
      : Command(
            {.name = "inference",
             .summary = "Receives versions into memory and writes them to a folder",
             .example =
                 R"(  weightcast inference --controller head:29750 --engine rollout-0 --like /ckpt/base --output /data/w
  weightcast inference --engine e --rank 1 --world-size 2 --like /ckpt/base --output /data/w
  weightcast inference --engine e --like /ckpt/base --memory cuda --device 1    in the memory of a GPU
)"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--engine", output_.engine, "NAME", "The engine that this rank belongs to");
    flags.Require("--engine");
    flags.Add("--rank", rank_, 0, (1 << 20) - 1, "This rank's number in its engine");
    flags.Add("--world-size", world_size_, 1, 1 << 20, "How many ranks the engine has");
    flags.Add("--output", folder_, "DIR", "Write each version to DIR/<engine>/<version>/");
    flags.Add(
        "--like", like_, "DIR",
        "A checkpoint of the same model: its headers say which tensors to receive; no weights are read");
    flags.AddChoice("--model", preset_, plan::PresetNames(), "Preset tensors instead of --like");
    flags.Add("--dtype", dtype_, "DTYPE", "Of the preset");
    flags.AddChoice("--shards", shards_, {"tp", "full"},
                    "What each of several ranks holds: its tensor-parallel part, or everything");
    flags.AddChoice("--landing", landing_, {"in_place", "shadow"},
                    "Straight into the live weights, or into a second copy");
    place_.Declare(flags, ", from where they are copied to be written; it takes as much host memory, too");
    flags.Add("--model-name", model_, "NAME", "Which of the trainers' models");
    flags.Add("--versions", versions_, 0, int64_t{1} << 62, "End after so many versions; 0: no limit");
  }

  Status Run(const Context& context) override {
    SetLogPrefix(StrCat("engine ", output_.engine, " rank ", rank_));
    output_.folder = folder_;
    output_.rank = static_cast<int>(rank_);
    output_.ranks = static_cast<int>(world_size_);
    output_.sync = true;
    WC_RETURN_IF_ERROR(OpenLike());
    WC_ASSIGN_OR_RETURN(const ShardPlace place, place_.Parse());
    WC_ASSIGN_OR_RETURN(const plan::Layout layout, LayoutOfEngine());
    if (rank_ >= world_size_) {
      return Error(Code::kInvalidArgument, "--rank ", rank_, " is outside of --world-size ", world_size_,
                   "; give a rank from 0 to ", world_size_ - 1);
    }
    WC_ASSIGN_OR_RETURN(const ShardMemory memory,
                        ShardMemory::Make(layout, output_.rank, place, context.settings));
    if (!folder_.empty()) {
      WC_RETURN_IF_ERROR(checkpoint::RemoveLeftovers({folder_, output_.engine, output_.rank, output_.ranks}));
    }
    WorkerOptions options = BasicOptions(context);
    options.engine = output_.engine;
    options.rank = static_cast<uint32_t>(rank_);
    options.world_size = static_cast<uint32_t>(world_size_);
    options.model = model_;
    options.patient = true;
    json_ = {{"engine", output_.engine}, {"rank", rank_}, {"versions", Json::array()}};
    Status status = Attend(context, std::move(options), memory);
    // Being asked to end is how a rank that stays ends well.
    if (!status.ok() && !(StopSignal() != 0 && versions_ == 0)) return status;
    return context.json ? Print(JsonLine(json_)) : Status::Ok();
  }

 private:
  Status OpenLike() {
    if (!like_.empty()) {
      WC_ASSIGN_OR_RETURN(auto opened, checkpoint::Checkpoint::Open(like_));
      tensors_ = opened.tensors();
      if (opened.single_header() != nullptr) original_ = *opened.single_header();
      return Status::Ok();
    }
    if (preset_.empty()) {
      return {Code::kInvalidArgument,
              "nothing says what to receive; give --like DIR with a checkpoint of the same model (only "
              "its headers are read), or --model"};
    }
    WC_ASSIGN_OR_RETURN(const DType dtype, ParseDType(dtype_));
    WC_ASSIGN_OR_RETURN(tensors_, plan::PresetModel(preset_, dtype));
    return Status::Ok();
  }

  Result<plan::Layout> LayoutOfEngine() const {
    const int ranks = static_cast<int>(world_size_);
    return shards_ == "full" ? plan::DdpLayout(tensors_, ranks) : plan::TpLayout(tensors_, ranks);
  }

  Status Attend(const Context& context, WorkerOptions options, const ShardMemory& memory) {
    WC_ASSIGN_OR_RETURN(const auto inference, Inference::Connect(std::move(options)));
    const auto landing = landing_ == "shadow" ? LandingMode::kShadow : LandingMode::kInPlace;
    WC_RETURN_IF_ERROR(inference->Register({.shards = memory.shards()}, {.landing = landing}));
    return Serve(context, *inference, memory);
  }

  Status Serve(const Context& context, Inference& inference, const ShardMemory& memory) {
    for (int64_t done = 0; versions_ == 0 || done < versions_;) {
      WC_RETURN_IF_ERROR(inference.Begin());
      const TimePoint start = Clock::now();
      const auto version = ReceiveVersion(inference, 2 * context.settings.commit_timeout);
      if (!version.ok()) {
        WC_RETURN_IF_ERROR(CheckStop());
        WC_LOG(kError, version.status().message());
        // A later version may come. Where the session is over, Begin says so.
        WC_RETURN_IF_ERROR(LeavePhases(inference));
        continue;
      }
      WC_RETURN_IF_ERROR(Keep(context, *version, memory, Seconds(Clock::now() - start)));
      ++done;
    }
    return Status::Ok();
  }

  /// Waits as long as somebody may write to the weights: a stopped trainer goes on or ends, some time.
  static Status LeavePhases(Inference& inference) {
    for (;;) {
      Status status = inference.Abort();
      if (status.code() != Code::kFenced) return status;
      WC_RETURN_IF_ERROR(CheckStop());
    }
  }

  Status Keep(const Context& context, const Version& version, const ShardMemory& memory, double waited) {
    std::string kept = "in memory";
    if (!folder_.empty()) {
      WC_RETURN_IF_ERROR(memory.ReadMirror());
      const Status status =
          WriteVersion(output_, version, memory.host_shards(), original_ ? &*original_ : nullptr);
      // A full disk, or a rank that began again, costs a version and not the engine, unless just so many
      // versions were asked for.
      if (!status.ok() && versions_ != 0) return status;
      if (!status.ok())
        WC_LOG(kError, "version ", ToString(version), " was received and not written: ", status.message());
      kept = status.ok() ? (output_.folder / output_.engine / ToString(version)).string() : "not written";
    }
    if (!context.json) return Print(StrCat("version ", ToString(version), ": ", kept, "\n"));
    json_["versions"].push_back(
        {{"version", version.number}, {"run", version.run}, {"place", kept}, {"waited_seconds", waited}});
    return Status::Ok();
  }

  VersionOutput output_;
  std::string folder_;
  int64_t rank_ = 0;
  int64_t world_size_ = 1;
  std::string like_;
  std::string preset_;
  std::string dtype_ = "bf16";
  std::string shards_ = "tp";
  std::string landing_ = "in_place";
  PlaceFlags place_;
  std::string model_ = "policy";
  int64_t versions_ = 0;
  std::vector<TensorInfo> tensors_;
  std::optional<checkpoint::Header> original_;
  Json json_;
};

}  // namespace

std::unique_ptr<Command> MakeInferenceCommand() { return std::make_unique<InferenceCommand>(); }

}  // namespace weightcast::tools
