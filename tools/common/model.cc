#include "tools/common/model.h"

#include <algorithm>
#include <cctype>

#include "base/strings.h"
#include "plan/models.h"

namespace weightcast::tools {

Result<DType> ParseDType(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char character) { return static_cast<char>(std::toupper(character)); });
  if (const auto dtype = DTypeFromName(upper)) return *dtype;
  std::string known;
  for (int i = 0; i < kDTypeCount; ++i) known += StrCat(i == 0 ? "" : ", ", NameOf(static_cast<DType>(i)));
  return Error(Code::kInvalidArgument, "no dtype is called '", name, "'; give one of ", known);
}

Status CheckCluster(const Cluster& cluster) {
  if (cluster.engines == 0 ||
      (cluster.engines <= cluster.inference && cluster.inference % cluster.engines == 0))
    return Status::Ok();
  return Error(Code::kInvalidArgument, Count(cluster.inference, "inference rank"), " cannot be divided into ",
               Count(cluster.engines, "equal engine"), "; choose --inference as a multiple of --engines");
}

Result<plan::Layout> TrainerLayout(const Cluster& cluster, const std::vector<TensorInfo>& tensors) {
  const int ranks = static_cast<int>(cluster.trainers);
  return cluster.trainer_layout == "fsdp" ? plan::FsdpLayout(tensors, ranks)
                                          : plan::DdpLayout(tensors, ranks);
}

Result<plan::Layout> EngineLayout(const Cluster& cluster, const std::vector<TensorInfo>& tensors) {
  return plan::TpLayout(tensors, cluster.ranks_per_engine());
}

std::string Describe(const Cluster& cluster) {
  return StrCat(Count(cluster.trainers, "trainer"), " (", cluster.trainer_layout, ") -> ",
                Count(cluster.engine_count(), "engine"), " of ", Count(cluster.ranks_per_engine(), "rank"));
}

int64_t BytesOf(const std::vector<TensorInfo>& tensors) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) bytes += BytesOf(tensor.dtype, ElementsOf(tensor.shape));
  return bytes;
}

std::string Count(int64_t count, std::string_view noun) {
  return StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace weightcast::tools
