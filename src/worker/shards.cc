#include "worker/shards.h"

#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/strings.h"
#include "memory/memory.h"
#include "plan/box.h"
#include "plan/cover.h"

namespace weightcast::worker {
namespace {

/// Whether the bytes of a part that lie outermost lie in its memory.
bool Holds(const Memory& memory, const Shard& shard) {
  __extension__ using Bits = __int128;  // Sizes and strides are the caller's, up to 2^63 each.
  const Shape& size = BoxOf(shard).size;
  const std::vector<int64_t> strides = StridesOf(shard);
  Bits first = 0;
  Bits last = 0;
  for (size_t d = 0; d < size.size(); ++d) {
    const Bits reach = Bits{size[d] - 1} * strides[d];
    (reach < 0 ? first : last) += reach;
  }
  const Bits bits = BitsOf(shard.tensor.dtype);
  const Bits start = Bits{shard.offset} * 8;
  return start + first * bits >= 0 && start + (last + 1) * bits <= Bits{memory.length} * 8;
}

Status CheckMemoryOf(const Shard& shard) {
  if (plan::ElementsOf(BoxOf(shard)) == 0) return Status::Ok();
  const Memory& memory = shard.memory;
  const std::string_view name = shard.tensor.name;
  if (memory.kind == MemoryKind::kHost && memory.address == nullptr)
    return Error(Code::kInvalidArgument, "tensor ", name,
                 " has no memory (a null pointer); allocate it first");
  if (Status status = CheckMemory(memory); !status.ok())
    return Error(status.code(), "tensor ", name, ": ", status.message());
  if (!Holds(memory, shard))
    return Error(Code::kInvalidArgument, "tensor ", name, ": its ",
                 BytesOf(shard.tensor.dtype, plan::ElementsOf(BoxOf(shard))), " bytes from byte ",
                 shard.offset, " on do not lie inside its memory of ", memory.length,
                 " bytes; correct offset and strides");
  return Status::Ok();
}

Status CheckShard(const Shard& shard, Needs needs) {
  WC_RETURN_IF_ERROR(plan::CheckTensor(shard.tensor));
  const Box& box = BoxOf(shard);
  WC_RETURN_IF_ERROR(plan::CheckBox(box, shard.tensor));
  if (!shard.strides.empty() && shard.strides.size() != box.size.size()) {
    return Error(Code::kInvalidArgument, "tensor ", shard.tensor.name, " has ", box.size.size(),
                 " dimensions but ", shard.strides.size(), " strides; give one for each dimension");
  }
  return needs == Needs::kMemory && !shard.declared ? CheckMemoryOf(shard) : Status::Ok();
}

/// Of tensors that have several shards.
Status CheckSeveral(std::span<const Shard> shards, std::string_view holder) {
  std::vector<plan::Holding> holdings;
  std::unordered_map<std::string_view, bool> declared;
  for (const Shard& shard : shards) {
    const auto [known, fresh] = declared.emplace(shard.tensor.name, shard.declared);
    if (known->second != shard.declared)
      return Error(Code::kInvalidArgument, "tensor '", shard.tensor.name, "': some shards of ", holder,
                   " are declared (never sent), others not; declare all of them or none");
    holdings.push_back({shard.tensor, BoxOf(shard)});
  }
  return plan::CheckHoldings(holder, holdings);
}

}  // namespace

std::vector<int64_t> StridesOf(const Shard& shard) {
  return shard.strides.empty() ? DenseStrides(BoxOf(shard).size) : shard.strides;
}

GatherSource SourceOf(const Shard& shard, Box box) {
  return {.data = DataOf(shard),
          .dtype = shard.tensor.dtype,
          .shard = BoxOf(shard),
          .strides = StridesOf(shard),
          .box = std::move(box)};
}

uint64_t ShardKey(std::string_view tensor, const Box& box, uint32_t copy) {
  ByteWriter writer;
  writer.PutString(tensor);
  for (const Shape* shape : {&box.offset, &box.size}) {
    writer.Put(static_cast<uint32_t>(shape->size()));
    for (const int64_t extent : *shape) writer.Put(extent);
  }
  if (copy > 0) writer.Put(copy);
  const uint64_t key = Hash64(writer.bytes());
  return key == 0 ? 1 : key;
}

Result<std::unordered_map<uint64_t, size_t>> CheckShards(std::span<const Shard> shards, Needs needs,
                                                         std::string_view holder) {
  if (shards.empty())
    return Status(Code::kInvalidArgument, "nothing to register: there are no shards; give at least one");
  std::unordered_map<uint64_t, size_t> by_key;
  std::unordered_map<uint64_t, uint32_t> copies;  // Beyond the first, of what has any.
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < shards.size(); ++i) {
    WC_RETURN_IF_ERROR(CheckShard(shards[i], needs));
    names.insert(shards[i].tensor.name);
    const uint64_t key = ShardKey(shards[i].tensor.name, BoxOf(shards[i]));
    const auto [known, fresh] = by_key.emplace(key, i);
    if (fresh) continue;
    const Shard& first = shards[known->second];
    const bool copy = first.tensor.name == shards[i].tensor.name && BoxOf(first) == BoxOf(shards[i]);
    if (!copy || !by_key.emplace(ShardKey(first.tensor.name, BoxOf(first), ++copies[key]), i).second)
      return Error(Code::kInvalidArgument, "tensors ", first.tensor.name, " and ", shards[i].tensor.name,
                   " have shards with the same key, ", key, "; rename one of the tensors");
  }
  if (names.size() < shards.size()) WC_RETURN_IF_ERROR(CheckSeveral(shards, holder));
  return by_key;
}

std::span<std::byte> SpanOf(const Shard& shard) {
  const int64_t bytes = BytesOf(shard.tensor.dtype, plan::ElementsOf(BoxOf(shard)));
  return {DataOf(shard), static_cast<size_t>(bytes)};
}

Memory MemoryOf(const Shard& shard) {
  const auto span = SpanOf(shard);
  return {.kind = shard.memory.kind,
          .device = shard.memory.device,
          .address = span.data(),
          .length = span.size()};
}

std::vector<protocol::ShardInfo> InfosOf(std::span<const Shard> shards) {
  std::vector<protocol::ShardInfo> infos;
  infos.reserve(shards.size());
  for (const Shard& shard : shards)
    infos.push_back({.tensor = shard.tensor, .box = BoxOf(shard), .declared = shard.declared});
  return infos;
}

}  // namespace weightcast::worker
