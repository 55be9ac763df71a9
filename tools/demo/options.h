#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/command.h"
#include "tools/common/model.h"
#include "tools/common/shards.h"
#include "tools/worker/versions.h"
#include "weightcast/worker.h"

namespace weightcast::tools {

/// What a demo does; every one of its processes gets the same.
struct DemoOptions {
  Cluster cluster;
  std::string model = "gpt2";  ///< Preset, unless there is a checkpoint.
  std::string dtype = "bf16";
  std::string checkpoint;  ///< Folder or file; empty: the preset model is written to a file first.
  int64_t versions = 5;
  std::string landing = "in_place";
  std::string memory = "host";  ///< Or "cuda", "cuda-pages", "mixed".
  /// Numbers of GPUs that the ranks of a role take in turn; empty: all that there are.
  std::vector<std::string> trainer_devices;
  std::vector<std::string> inference_devices;
  std::string output;  ///< Empty: nothing is written.
};

void DeclareDemoFlags(Flags& flags, DemoOptions& options);
/// The same as arguments of a command line.
std::vector<std::string> ArgumentsOf(const DemoOptions& options);

/// kInvalidArgument for devices that are no numbers, or beside host memory alone.
Status CheckDevices(const DemoOptions& options);

LandingMode LandingOf(const DemoOptions& options);

/// Where the shards of a rank lie; trainers and inference ranks take their devices in turn. After
/// CheckDevices.
ShardPlace TrainerPlace(const DemoOptions& options, int64_t rank);
ShardPlace InferencePlace(const DemoOptions& options, int64_t rank);

/// "engine-0".
std::string EngineName(int engine);

}  // namespace weightcast::tools
