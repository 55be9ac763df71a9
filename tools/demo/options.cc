#include "tools/demo/options.h"

#include "base/strings.h"
#include "plan/models.h"

namespace weightcast::tools {

namespace {

/// The device of a rank: of `chosen` in turn, or else `otherwise`, counted round.
ShardPlace OnDevice(const std::string& kind, const std::vector<std::string>& chosen, int64_t rank,
                    int64_t otherwise) {
  if (kind == "host" || chosen.empty()) return {.kind = kind, .device = otherwise};
  const std::string& text = chosen[static_cast<size_t>(rank) % chosen.size()];
  return {.kind = kind, .device = ParseNumber<int64_t>(text).value_or(0), .exact = true};
}

}  // namespace

void DeclareDemoFlags(Flags& flags, DemoOptions& options) {
  constexpr int64_t kMostOfARole = 512;
  flags.Add("--trainers", options.cluster.trainers, 1, kMostOfARole, "Trainer processes");
  flags.Add("--inference", options.cluster.inference, 1, kMostOfARole, "Inference processes");
  flags.Add("--engines", options.cluster.engines, 0, kMostOfARole,
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
  flags.AddList("--trainer-devices", options.trainer_devices, "NUMBERS",
                "GPUs whose memory the trainers use, in turn; without it all processes take all in turn");
  flags.AddList("--inference-devices", options.inference_devices, "NUMBERS",
                "The same of the inference processes");
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
  add("--trainer-devices", Join(options.trainer_devices, ","));
  add("--inference-devices", Join(options.inference_devices, ","));
  add("--output", options.output);
  return arguments;
}

Status CheckDevices(const DemoOptions& options) {
  const auto check = [&options](std::string_view flag, const std::vector<std::string>& devices) -> Status {
    if (!devices.empty() && options.memory == "host")
      return Error(Code::kInvalidArgument, flag,
                   " is for --memory cuda, cuda-pages or mixed; add one of them");
    for (const std::string& text : devices) WC_RETURN_IF_ERROR(ParseDevice(flag, text).status());
    return Status::Ok();
  };
  WC_RETURN_IF_ERROR(check("--trainer-devices", options.trainer_devices));
  return check("--inference-devices", options.inference_devices);
}

LandingMode LandingOf(const DemoOptions& options) {
  return options.landing == "shadow" ? LandingMode::kShadow : LandingMode::kInPlace;
}

ShardPlace TrainerPlace(const DemoOptions& options, int64_t rank) {
  const std::string kind = options.memory != "mixed" ? options.memory : rank == 0 ? "host" : "cuda";
  return OnDevice(kind, options.trainer_devices, rank, rank);
}

ShardPlace InferencePlace(const DemoOptions& options, int64_t rank) {
  return OnDevice(options.memory == "mixed" ? "cuda" : options.memory, options.inference_devices, rank,
                  options.cluster.trainers + rank);
}

std::string EngineName(int engine) { return StrCat("engine-", engine); }

}  // namespace weightcast::tools
