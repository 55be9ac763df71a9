#include "tools/demo_options.h"

#include "base/strings.h"
#include "plan/models.h"

namespace weightcast::tools {

void DeclareDemoFlags(Flags& flags, DemoOptions& options) {
  constexpr int64_t kMostProcesses = 512;
  flags.Add("--trainers", options.cluster.trainers, 1, kMostProcesses, "Trainer processes");
  flags.Add("--inference", options.cluster.inference, 1, kMostProcesses, "Inference processes");
  flags.Add("--engines", options.cluster.engines, 0, kMostProcesses,
            "Groups the inference processes, each group holding TP shards; 0: each is an engine");
  flags.AddChoice("--trainer-layout", options.cluster.trainer_layout, {"ddp", "fsdp"},
                  "ddp: each trainer has a full replica; fsdp: shards of dimension 0");
  flags.AddChoice("--model", options.model, plan::PresetNames(), "Shape of the generated weights");
  flags.Add("--dtype", options.dtype, "DTYPE", "Of the generated weights");
  flags.Add("--checkpoint", options.checkpoint, "DIR",
            "Use these safetensors instead: version 1 is the file, later ones are changed");
  flags.Add("--versions", options.versions, 1, 1'000'000, "How many versions to publish");
  flags.AddChoice("--landing", options.landing, {"in_place", "shadow"},
                  "Straight into the live weights, or into a second copy");
  flags.AddChoice("--memory", options.memory, {"host", "cuda", "cuda-pages", "mixed"},
                  "Where weights lie: host memory; a GPU's, by cuMemAlloc, or in handles of 2 MiB; mixed: "
                  "trainer 0's in host memory, all others' on GPUs");
  flags.Add("--output", options.output, "DIR", "Write what arrives to DIR/<engine>/<version>/");
}

std::vector<std::string> ArgumentsOf(const DemoOptions& options) {
  std::vector<std::string> arguments;
  const auto add = [&arguments](const char* flag, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {flag, value});
  };
  add("--trainers", StrCat(options.cluster.trainers));
  add("--inference", StrCat(options.cluster.inference));
  add("--engines", StrCat(options.cluster.engines));
  add("--trainer-layout", options.cluster.trainer_layout);
  add("--model", options.model);
  add("--dtype", options.dtype);
  add("--checkpoint", options.checkpoint);
  add("--versions", StrCat(options.versions));
  add("--landing", options.landing);
  add("--memory", options.memory);
  add("--output", options.output);
  return arguments;
}

LandingMode LandingOf(const DemoOptions& options) {
  return options.landing == "shadow" ? LandingMode::kShadow : LandingMode::kInPlace;
}

ShardPlace TrainerPlace(const DemoOptions& options, int64_t rank) {
  if (options.memory == "mixed") return {.kind = rank == 0 ? "host" : "cuda", .device = rank};
  return {.kind = options.memory, .device = rank};
}

ShardPlace InferencePlace(const DemoOptions& options, int64_t rank) {
  return {.kind = options.memory == "mixed" ? "cuda" : options.memory,
          .device = options.cluster.trainers + rank};
}

std::string EngineName(int engine) { return StrCat("engine-", engine); }

}  // namespace weightcast::tools
