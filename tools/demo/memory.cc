#include "tools/demo/memory.h"

#include "base/strings.h"
#include "tools/common/files.h"
#include "tools/common/shards.h"

namespace weightcast::tools {
namespace {

// Measured: private memory of one process of a demo at rest, and what a connection adds.
constexpr int64_t kBytesOfProcess = 24 << 20;

std::string Human(int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

}  // namespace

Result<DemoMemory> MemoryOf(const DemoOptions& options, const std::vector<TensorInfo>& tensors,
                            const std::filesystem::path& temporary) {
  WC_ASSIGN_OR_RETURN(const plan::Layout trainers, TrainerLayout(options.cluster, tensors));
  WC_ASSIGN_OR_RETURN(const plan::Layout engine, EngineLayout(options.cluster, tensors));
  DemoMemory memory;
  for (int rank = 0; rank < trainers.ranks(); ++rank) memory.trainers += MemoryOfRank(trainers, rank);
  for (int rank = 0; rank < engine.ranks(); ++rank) memory.inference += MemoryOfRank(engine, rank);
  memory.inference *= options.cluster.engine_count();
  // On GPUs the second copy lies there; what is counted is the mirrors that the demo checks.
  if (LandingOf(options) == LandingMode::kShadow && options.memory == "host")
    memory.shadow = memory.inference;
  memory.processes = (options.cluster.trainers + options.cluster.inference + 2) * kBytesOfProcess;
  if (options.checkpoint.empty() && LiesInMemory(temporary)) memory.file = BytesOf(tensors);
  return memory;
}

std::string Describe(const DemoMemory& memory, uint64_t available) {
  std::string out =
      StrCat("memory: trainers ", Human(memory.trainers), " + inference ", Human(memory.inference));
  if (memory.shadow > 0) out += StrCat(" + shadow ", Human(memory.shadow));
  if (memory.file > 0) out += StrCat(" + model file ", Human(memory.file));
  return out + StrCat(" + processes ", Human(memory.processes), " = ", Human(memory.total()), " of ",
                      HumanBytes(static_cast<double>(available)), " available");
}

Status CheckFits(const DemoMemory& memory, uint64_t available, const DemoOptions& options) {
  if (static_cast<uint64_t>(memory.total()) <= available) return Status::Ok();
  std::string advice = "lower --inference";
  if (options.cluster.trainer_layout == "ddp" && options.cluster.trainers > 1)
    advice += " or --trainers, or take --trainer-layout fsdp, which needs one copy for all trainers";
  if (memory.shadow > 0) advice += ", or take --landing in_place, which needs no second copy";
  return Error(Code::kExhausted, "this demo would take ", Human(memory.total()), " of memory, but only ",
               HumanBytes(static_cast<double>(available)), " are available; ", advice);
}

}  // namespace weightcast::tools
