#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::tools {

/// The dtype that a flag names, in either case. Errors: kInvalidArgument, listing all there are.
Result<DType> ParseDType(std::string_view name);

/// How trainers and inference ranks hold a model: the flags that demo, plan and bench share.
struct Cluster {
  int64_t trainers = 2;
  int64_t inference = 2;               ///< Ranks, of all engines together.
  int64_t engines = 0;                 ///< 0: each inference rank is an engine.
  std::string trainer_layout = "ddp";  ///< "ddp" or "fsdp".

  [[nodiscard]] int engine_count() const { return static_cast<int>(engines == 0 ? inference : engines); }
  [[nodiscard]] int ranks_per_engine() const { return static_cast<int>(inference) / engine_count(); }
};

/// Refuses engines that the inference ranks cannot be divided into.
Status CheckCluster(const Cluster& cluster);

/// The trainers' side of a cluster.
Result<plan::Layout> TrainerLayout(const Cluster& cluster, const std::vector<TensorInfo>& tensors);
/// One engine's ranks: tensor-parallel shards; all of everything for an engine of one rank.
Result<plan::Layout> EngineLayout(const Cluster& cluster, const std::vector<TensorInfo>& tensors);

/// "2 trainers (ddp) -> 2 engines of 1 rank".
std::string Describe(const Cluster& cluster);

int64_t BytesOf(const std::vector<TensorInfo>& tensors);

/// "1 rank", "2 ranks".
std::string Count(int64_t count, std::string_view noun);

}  // namespace weightcast::tools
