#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/command.h"
#include "tools/model.h"
#include "tools/shards.h"
#include "tools/versions.h"
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
  std::string output;           ///< Empty: nothing is written.
};

void DeclareDemoFlags(Flags& flags, DemoOptions& options);
/// The same as arguments of a command line.
std::vector<std::string> ArgumentsOf(const DemoOptions& options);

LandingMode LandingOf(const DemoOptions& options);

/// Where the shards of a rank lie; trainers and inference ranks take the devices in turn.
ShardPlace TrainerPlace(const DemoOptions& options, int64_t rank);
ShardPlace InferencePlace(const DemoOptions& options, int64_t rank);

/// "engine-0".
std::string EngineName(int engine);

}  // namespace weightcast::tools
