#include <algorithm>

#include "base/log.h"
#include "base/strings.h"
#include "tools/common/shards.h"
#include "tools/common/stop.h"
#include "tools/demo/children.h"
#include "tools/demo/messages.h"
#include "tools/demo/options.h"
#include "tools/worker/worker_loop.h"

namespace weightcast::tools {
namespace {

constexpr double kBetweenLooks = 0.2;  ///< At the stop signal.

Status Tell(const DemoEvent& event) { return SendDatagram(kParentDescriptor, EncodeStruct(event)); }

/// The next version to publish; 0: end. Without a parent there is nothing left to do either.
Result<int64_t> NextOrder() {
  for (;;) {
    WC_RETURN_IF_ERROR(CheckStop());
    const auto bytes = ReceiveDatagram(kParentDescriptor, Clock::now() + FromSeconds(kBetweenLooks));
    if (bytes.status().code() == Code::kTimedOut) continue;
    if (!bytes.ok()) return bytes.status();
    if (!bytes->has_value())
      return Status(
          Code::kCancelled,
          "the demo that started this process has ended, so this process ends; see the demo's output");
    WC_ASSIGN_OR_RETURN(const DemoOrder order, DecodeStruct<DemoOrder>(**bytes));
    return order.publish;
  }
}

/// One process of a demo: the controller, a trainer or an inference rank.
class DemoWorkerCommand : public Command {
 public:
  DemoWorkerCommand()
      : Command({.name = "demo-worker",
                 .summary = "One process of a demo; started by it",
                 .example = "  weightcast demo\n",
                 .hidden = true}) {}

  void Declare(Flags& flags) override {
    DeclareDemoFlags(flags, options_);
    flags.AddChoice("--role", role_, {"controller", "trainer", "inference"}, "What this process is");
    flags.Add("--rank", rank_, 0, 1 << 20, "Among its kind");
    flags.Add("--weights", weights_, "PATH", "The safetensors of version 1");
  }

  Status Run(const Context& context) override {
    SetLogPrefix(role_ == "controller" ? role_ : StrCat(role_, " ", rank_));
    const Status status = role_ == "controller" ? RunController(context)
                          : role_ == "trainer"  ? RunTrainer(context)
                                                : RunInference(context);
    // The parent may have gone, or ended us: then nobody wants to know.
    if (!status.ok() && StopSignal() == 0) {
      [[maybe_unused]] const Status told =
          Tell({.kind = DemoEvent::Kind::kFailed, .version = version_, .text = status.message()});
    }
    return status;
  }

 private:
  [[nodiscard]] WorkerOptions OptionsOf(const Context& context) const {
    WorkerOptions options = BasicOptions(context);
    options.rank = static_cast<uint32_t>(rank_);
    options.world_size = static_cast<uint32_t>(options_.cluster.trainers);
    return options;
  }

  Result<Versions> OpenVersions() const { return Versions::Open(weights_, options_.checkpoint.empty()); }

  static Status RunController(const Context& context) {
    Controller::Options options;
    options.settings = context.overrides;
    WC_ASSIGN_OR_RETURN(const auto controller, Controller::Start(std::move(options)));
    WC_RETURN_IF_ERROR(Tell({.kind = DemoEvent::Kind::kListening, .text = controller->address()}));
    const auto order = NextOrder();
    controller->Stop();
    return order.status();
  }

  Status RunTrainer(const Context& context) {
    WC_ASSIGN_OR_RETURN(const Versions versions, OpenVersions());
    WC_ASSIGN_OR_RETURN(const plan::Layout layout,
                        TrainerLayout(options_.cluster, versions.file().tensors()));
    WC_ASSIGN_OR_RETURN(
        const ShardMemory memory,
        ShardMemory::Make(layout, static_cast<int>(rank_), TrainerPlace(options_, rank_), context.settings));
    WC_RETURN_IF_ERROR(Fill(memory, versions, 1));
    WC_ASSIGN_OR_RETURN(const auto trainer, Trainer::Connect(OptionsOf(context)));
    WC_RETURN_IF_ERROR(trainer->Register({.shards = memory.shards()}));
    WC_RETURN_IF_ERROR(Tell({.kind = DemoEvent::Kind::kReady}));
    for (;;) {
      WC_ASSIGN_OR_RETURN(version_, NextOrder());
      if (version_ == 0) break;
      WC_RETURN_IF_ERROR(PublishOne(context, *trainer, memory, versions));
    }
    trainer->Close();
    return Status::Ok();
  }

  static Status Fill(const ShardMemory& memory, const Versions& versions, int64_t version) {
    for (const Shard& shard : memory.host_shards()) {
      WC_RETURN_IF_ERROR(CheckStop());
      WC_RETURN_IF_ERROR(versions.Fill(shard, version));
    }
    return memory.WriteMirror();
  }

  Status PublishOne(const Context& context, Trainer& trainer, const ShardMemory& memory,
                    const Versions& versions) const {
    WC_ASSIGN_OR_RETURN(const auto update, trainer.Publish(version_));
    // Every step of an update has its own limit; this one is the last resort.
    const Duration limit = 4 * context.settings.timeout + context.settings.join_timeout;
    WC_RETURN_IF_ERROR(update->WaitSources(In(limit)));
    if (version_ < options_.versions) WC_RETURN_IF_ERROR(Fill(memory, versions, version_ + 1));
    WC_ASSIGN_OR_RETURN(const UpdateStats stats, update->Wait(In(limit)));
    DemoEvent event{.kind = DemoEvent::Kind::kCommitted, .version = version_};
    event.seconds = stats.seconds;
    event.bytes = stats.bytes;
    for (const RankStats& sender : stats.senders) event.sender_bytes.push_back(sender.bytes);
    event.connection_map = trainer.ConnectionMap();
    return Tell(event);
  }

  Status RunInference(const Context& context) {
    WC_ASSIGN_OR_RETURN(const Versions versions, OpenVersions());
    WC_ASSIGN_OR_RETURN(const plan::Layout layout, EngineLayout(options_.cluster, versions.file().tensors()));
    const int ranks = options_.cluster.ranks_per_engine();
    const int rank = static_cast<int>(rank_) % ranks;
    const VersionOutput output{options_.output, EngineName(static_cast<int>(rank_) / ranks), rank, ranks};
    WC_ASSIGN_OR_RETURN(const ShardMemory memory,
                        ShardMemory::Make(layout, rank, InferencePlace(options_, rank_), context.settings));
    WorkerOptions options = OptionsOf(context);
    options.engine = output.engine;
    options.rank = static_cast<uint32_t>(rank);
    options.world_size = static_cast<uint32_t>(ranks);
    WC_ASSIGN_OR_RETURN(const auto inference, Inference::Connect(std::move(options)));
    WC_RETURN_IF_ERROR(inference->Register({.shards = memory.shards()}, {.landing = LandingOf(options_)}));
    WC_RETURN_IF_ERROR(inference->Begin());
    WC_RETURN_IF_ERROR(Tell({.kind = DemoEvent::Kind::kReady}));
    while (version_ < options_.versions)
      WC_RETURN_IF_ERROR(ReceiveOne(context, *inference, memory, versions, output));
    WC_RETURN_IF_ERROR(NextOrder().status());
    inference->Close();
    return Status::Ok();
  }

  Status ReceiveOne(const Context& context, Inference& inference, const ShardMemory& memory,
                    const Versions& versions, const VersionOutput& output) {
    WC_ASSIGN_OR_RETURN(const Version version,
                        ReceiveVersion(inference, 2 * context.settings.commit_timeout));
    version_ = version.number;
    WC_RETURN_IF_ERROR(memory.ReadMirror());
    for (const Shard& shard : memory.host_shards()) {
      WC_RETURN_IF_ERROR(CheckStop());
      WC_RETURN_IF_ERROR(versions.Check(shard, version_));
    }
    if (!output.folder.empty()) {
      WC_RETURN_IF_ERROR(
          WriteVersion(output, version, memory.host_shards(), versions.file().single_header()));
    }
    // Only now: before that the next version could overwrite what is being read.
    if (version_ < options_.versions) WC_RETURN_IF_ERROR(inference.Begin());
    return Tell({.kind = DemoEvent::Kind::kVerified, .version = version_});
  }

  DemoOptions options_;
  std::string role_ = "trainer";
  int64_t rank_ = 0;
  std::string weights_;
  int64_t version_ = 0;  ///< The one it is busy with.
};

}  // namespace

std::unique_ptr<Command> MakeDemoWorkerCommand() { return std::make_unique<DemoWorkerCommand>(); }

}  // namespace weightcast::tools
