#include "worker/registration.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "base/varint.h"
#include "plan/box.h"
#include "plan/pattern.h"
#include "plan/rules.h"
#include "protocol/limits.h"
#include "weightcast/rules.h"
#include "worker/gather.h"
#include "worker/shards.h"

namespace weightcast {
namespace {

using plan::MeshDim;

Status CheckMesh(const Registration& registration, size_t index) {
  const std::vector<uint32_t>& sizes = registration.meshes[index].sizes;
  const std::vector<uint32_t>& place = registration.coordinates[index];
  if (sizes.empty() || sizes.size() > plan::kMaxMeshDims)
    return InvalidArgument("mesh ", index, " has ", sizes.size(), " dimensions; allowed: 1 to ",
                           plan::kMaxMeshDims);
  if (place.size() != sizes.size())
    return InvalidArgument("mesh ", index, " has ", sizes.size(), " dimensions but ", place.size(),
                           " coordinates; give one for each");
  uint64_t ranks = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ranks *= sizes[i];
    if (ranks == 0 || ranks > plan::kMaxRanks)
      return InvalidArgument("mesh ", index, " has ", ranks, " ranks in its first ", i + 1,
                             " dimensions; give sizes whose product is 1 to ", plan::kMaxRanks);
    if (place[i] >= sizes[i])
      return InvalidArgument("coordinate ", place[i], " in dimension ", i, " of mesh ", index,
                             " is outside its size of ", sizes[i], "; coordinates count from 0");
  }
  return Status::Ok();
}

Status CheckMeshes(const Registration& registration) {
  if (registration.meshes.size() != registration.coordinates.size())
    return InvalidArgument("there are ", registration.meshes.size(), " meshes but coordinates for ",
                           registration.coordinates.size(), "; give one list of them for each");
  for (size_t i = 0; i < registration.meshes.size(); ++i) WC_RETURN_IF_ERROR(CheckMesh(registration, i));
  return Status::Ok();
}

/// The mesh of a Placed shard of a checked tensor, with its placements as patterns have them.
Result<std::vector<MeshDim>> MeshOf(const std::vector<Mesh>& meshes, const TensorInfo& tensor,
                                    const Placed& placed) {
  if (placed.mesh >= meshes.size())
    return InvalidArgument("tensor ", tensor.name, " is placed on mesh ", placed.mesh, " of ", meshes.size(),
                           ", counted from 0; register that mesh, or name one of these");
  const std::vector<uint32_t>& sizes = meshes[placed.mesh].sizes;
  if (placed.placements.size() != sizes.size())
    return InvalidArgument("tensor ", tensor.name, " has ", placed.placements.size(),
                           " placements on a mesh of ", sizes.size(), " dimensions; give one for each");
  std::vector<MeshDim> mesh;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Cut* cut = std::get_if<Cut>(&placed.placements[i]);
    if (cut != nullptr && (cut->dim < 0 || static_cast<size_t>(cut->dim) >= tensor.shape.size()))
      return InvalidArgument("tensor ", tensor.name, " of ", tensor.shape.size(),
                             " dimensions is cut along dimension ", cut->dim, "; name one that it has");
    mesh.push_back({.size = static_cast<int>(sizes[i]),
                    .stride = 1,
                    .shard_dim = cut != nullptr ? cut->dim : plan::kReplicate});
  }
  return mesh;
}

void PutSizes(const std::vector<int64_t>& sizes, VarintWriter& out) {
  out.Put(sizes.size());
  for (const int64_t size : sizes) out.Put(static_cast<uint64_t>(size));
}

Status PutPart(const Registration& registration, const Shard& shard, VarintWriter& out) {
  if (const Box* box = std::get_if<Box>(&shard.part)) {
    WC_RETURN_IF_ERROR(plan::CheckBox(*box, shard.tensor));
    out.Put(0);
    PutSizes(box->offset, out);
    PutSizes(box->size, out);
    return Status::Ok();
  }
  WC_ASSIGN_OR_RETURN(const std::vector<MeshDim> mesh,
                      MeshOf(registration.meshes, shard.tensor, std::get<Placed>(shard.part)));
  out.Put(1);
  out.Put(mesh.size());
  for (const MeshDim& dim : mesh) {
    out.Put(static_cast<uint64_t>(dim.size));
    out.Put(static_cast<uint64_t>(dim.shard_dim + 1));  // 0: replicated.
  }
  return Status::Ok();
}

Result<std::string> BytesOfShard(const Registration& registration, const Shard& shard, const Box& box) {
  VarintWriter out;
  out.PutText(shard.tensor.name);
  out.PutText(NameOf(shard.tensor.dtype));
  PutSizes(shard.tensor.shape, out);
  WC_RETURN_IF_ERROR(PutPart(registration, shard, out));
  out.Put(shard.offset);
  const bool dense = shard.strides.empty() || worker::IsDense(box.size, shard.strides);
  PutSizes(dense ? std::vector<int64_t>() : shard.strides, out);
  out.Put(shard.declared ? 1 : 0);
  return out.Take();
}

}  // namespace

namespace worker {

Result<std::vector<Shard>> ResolveShards(Registration registration) {
  WC_RETURN_IF_ERROR(CheckMeshes(registration));
  for (Shard& shard : registration.shards) {
    WC_RETURN_IF_ERROR(plan::CheckTensor(shard.tensor));
    const Placed* placed = std::get_if<Placed>(&shard.part);
    if (placed == nullptr) continue;
    WC_ASSIGN_OR_RETURN(const auto mesh, MeshOf(registration.meshes, shard.tensor, *placed));
    const std::vector<uint32_t>& coordinates = registration.coordinates[placed->mesh];
    const std::vector<int> place(coordinates.begin(), coordinates.end());
    Box box;
    plan::FindAtPlace(mesh, place, shard.tensor.shape, box);  // An empty one is a part, too.
    shard.part = std::move(box);
  }
  return std::move(registration.shards);
}

Status CheckPatterns(const std::vector<std::string>& patterns, std::string_view what) {
  if (patterns.size() > protocol::kMaxPatterns)
    return InvalidArgument(what, " has ", patterns.size(), " names; give at most ", protocol::kMaxPatterns);
  for (const std::string& pattern : patterns) {
    if (const Status status = plan::CheckNamePattern(pattern); !status.ok())
      return InvalidArgument(what, " '", pattern, "': ", status.message());
  }
  return Status::Ok();
}

Status DeclareNotSent(const std::vector<std::string>& patterns, std::vector<Shard>& shards) {
  WC_RETURN_IF_ERROR(CheckPatterns(patterns, "not_sent"));
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (Shard& shard : shards) {
      if (!plan::MatchName(pattern, shard.tensor.name)) continue;
      shard.declared = found = true;
    }
    if (!found)
      return InvalidArgument(
          "not_sent '", pattern,
          "' is the name of no tensor that this rank registers; correct it or leave it out");
  }
  return Status::Ok();
}

Result<PartsOfShards> PartsOf(const std::vector<std::vector<std::string>>& groups,
                              const std::vector<Shard>& shards) {
  PartsOfShards parts;
  if (groups.empty()) return parts;
  if (groups.size() > protocol::kMaxParts)
    return InvalidArgument("there are ", groups.size(), " groups; give at most ", protocol::kMaxParts);
  parts.count = static_cast<uint32_t>(groups.size());
  std::vector<bool> used(groups.size());
  for (const auto& group : groups) WC_RETURN_IF_ERROR(CheckPatterns(group, "groups"));
  for (const Shard& shard : shards) {
    std::optional<uint32_t> part;
    for (uint32_t i = 0; i < groups.size() && !shard.declared; ++i) {
      const auto matches = [&](const std::string& name) {
        return plan::MatchName(name, shard.tensor.name).has_value();
      };
      if (std::ranges::none_of(groups[i], matches)) continue;
      if (part)
        return InvalidArgument("tensor ", shard.tensor.name, " is in groups ", *part, " and ", i,
                               "; put it into one");
      part = i;
      used[i] = true;
    }
    if (!part && !shard.declared)
      return InvalidArgument("tensor ", shard.tensor.name, " is in no group; put it into one");
    parts.of_shard.push_back(part.value_or(0));
  }
  const auto unused = std::ranges::find(used, false);
  if (unused != used.end())
    return InvalidArgument("group ", unused - used.begin(),
                           " names no tensor that is sent to this rank; correct its names or leave it out");
  return parts;
}

}  // namespace worker

Result<std::string> LayoutBytes(const Registration& registration) {
  WC_ASSIGN_OR_RETURN(const std::vector<Shard> resolved, worker::ResolveShards(registration));
  WC_RETURN_IF_ERROR(worker::CheckShards(resolved, worker::Needs::kNoMemory).status());
  std::vector<std::string> shards;
  for (size_t i = 0; i < resolved.size(); ++i) {
    WC_ASSIGN_OR_RETURN(std::string bytes,
                        BytesOfShard(registration, registration.shards[i], worker::BoxOf(resolved[i])));
    shards.push_back(std::move(bytes));
  }
  std::sort(shards.begin(), shards.end());
  VarintWriter out;
  for (const std::string& shard : shards) out.PutText(shard);
  return out.Take();
}

}  // namespace weightcast
