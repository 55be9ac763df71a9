#include "worker/scales.h"

#include <map>
#include <string>
#include <utility>

#include "base/strings.h"
#include "plan/quantise.h"
#include "worker/shards.h"

namespace weightcast::worker {
namespace {

/// Which tensor's scales have which name.
class ScalesNames {
 public:
  explicit ScalesNames(const std::vector<Shard>& registered) {
    for (const Shard& shard : registered) owner_.emplace(shard.tensor.name, shard.tensor.name);
  }
  Status Take(const std::string& scales, const std::string& tensor) {
    const auto [known, fresh] = owner_.emplace(scales, tensor);
    if (fresh || (known->second == tensor && scales != tensor)) return Status::Ok();
    return Error(Code::kInvalidArgument, "the scales of tensor '", tensor, "' would be named '", scales,
                 "', which is the name of ",
                 known->second == scales ? "a tensor" : StrCat("the scales of tensor '", known->second, "'"),
                 "; give the scales another name in the quantise rule");
  }

 private:
  std::map<std::string, std::string> owner_;
};

}  // namespace

Status AddScales(const NameRules& rules, std::string_view holder, SourceMemory& memory) {
  ScalesNames names(memory.shards);
  const size_t given = memory.shards.size();
  for (size_t i = 0; i < given; ++i) {
    const Shard& shard = memory.shards[i];
    if (shard.declared) continue;
    WC_ASSIGN_OR_RETURN(const auto quantised, plan::QuantisedBy(rules, shard.tensor));
    if (!quantised) continue;
    WC_RETURN_IF_ERROR(names.Take(quantised->scales.name, shard.tensor.name));
    WC_RETURN_IF_ERROR(plan::CheckBlocks(shard.tensor, BoxOf(shard), holder));
    if (ElementsOf(BoxOf(shard).size) == 0) continue;
    Shard scales = shard;
    scales.tensor = quantised->scales;
    scales.part = plan::ScalesOf(BoxOf(shard));
    memory.by_key.emplace(ShardKey(scales.tensor.name, BoxOf(scales)), memory.shards.size());
    memory.dense.push_back(false);
    memory.computed_from.push_back(i);
    memory.shards.push_back(std::move(scales));
  }
  return Status::Ok();
}

}  // namespace weightcast::worker
