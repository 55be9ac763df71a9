#include "worker/shards.h"

#include <set>
#include <string_view>

#include "base/strings.h"
#include "plan/box.h"
#include "worker/shard_key.h"

namespace weightcast::worker {
namespace {

Status CheckShard(const Shard& shard, bool in_memory) {
  WC_RETURN_IF_ERROR(plan::CheckTensor(shard.tensor));
  WC_RETURN_IF_ERROR(plan::CheckBox(shard.box, shard.tensor));
  const std::string_view name = shard.tensor.name;
  if (!shard.strides.empty() && shard.strides.size() != shard.box.size.size()) {
    return {Code::kInvalidArgument, StrCat("tensor ", name, " has ", shard.box.size.size(),
                                           " dimensions but ", shard.strides.size(), " strides")};
  }
  if (in_memory && shard.data == nullptr && plan::ElementsOf(shard.box) > 0 && !shard.declared)
    return {Code::kInvalidArgument, StrCat("tensor ", name, " has no memory (a null pointer)")};
  return Status::Ok();
}

}  // namespace

Result<std::unordered_map<uint64_t, size_t>> CheckShards(std::span<const Shard> shards, bool in_memory) {
  if (shards.empty()) return Status(Code::kInvalidArgument, "nothing to register: there are no shards");
  std::unordered_map<uint64_t, size_t> by_key;
  std::set<std::string_view> names;
  for (size_t i = 0; i < shards.size(); ++i) {
    WC_RETURN_IF_ERROR(CheckShard(shards[i], in_memory));
    const TensorInfo& tensor = shards[i].tensor;
    const bool known = !names.insert(tensor.name).second;
    if (known || !by_key.emplace(ShardKey(tensor.name, shards[i].box), i).second) {
      return Status(Code::kInvalidArgument,
                    StrCat("tensor ", tensor.name,
                           " is registered twice by this rank; a rank holds one box of each tensor"));
    }
  }
  return by_key;
}

std::span<std::byte> SpanOf(const Shard& shard) {
  const int64_t bytes = BytesOf(shard.tensor.dtype, plan::ElementsOf(shard.box));
  return {shard.data, static_cast<size_t>(bytes)};
}

std::vector<wire::ShardInfo> InfosOf(std::span<const Shard> shards) {
  std::vector<wire::ShardInfo> infos;
  infos.reserve(shards.size());
  for (const Shard& shard : shards)
    infos.push_back({.tensor = shard.tensor, .box = shard.box, .declared = shard.declared});
  return infos;
}

}  // namespace weightcast::worker
