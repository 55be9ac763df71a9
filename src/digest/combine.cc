#include <charconv>
#include <cstdio>
#include <utility>

#include "base/strings.h"
#include "digest/constants.h"
#include "plan/box.h"
#include "plan/cover.h"
#include "weightcast/digest.h"

// The public part: values, and how those of many ranks become those of whole tensors.
namespace weightcast {
namespace {

/// What one rank has of a tensor.
struct Part {
  const ShardDigest* shard;
  int rank;
};

Status Bad(const TensorInfo& tensor, std::string message) {
  return Error(Code::kInvalidArgument, "tensor '", tensor.name, "' ", std::move(message));
}

Status CheckAlike(const Part& one, const Part& other) {
  const TensorInfo& a = one.shard->tensor;
  const TensorInfo& b = other.shard->tensor;
  if (a == b) return Status::Ok();
  return Bad(a, StrCat("is ", NameOf(a.dtype), " ", ToString(a.shape), " at rank ", one.rank, " and ",
                       NameOf(b.dtype), " ", ToString(b.shape), " at rank ", other.rank,
                       "; their digests cannot be added: give all ranks the same dtype and shape"));
}

/// Of parts that agree about their tensor: one of each box.
Result<TensorDigest> AddDistinct(std::span<const Part> parts) {
  std::map<std::pair<Shape, Shape>, const Part*> boxes;
  TensorDigest sum;
  for (const Part& part : parts) {
    const Box& box = part.shard->box;
    const auto [known, fresh] = boxes.emplace(std::pair(box.offset, box.size), &part);
    if (fresh) {
      sum += part.shard->digest;
      continue;
    }
    const Part& first = *known->second;
    if (first.shard->digest == part.shard->digest) continue;
    return Error(Code::kCorrupt, "tensor '", part.shard->tensor.name, "': the box ", ToString(box),
                 " has the digest ", first.shard->digest.ToString(), " at rank ", first.rank, " and ",
                 part.shard->digest.ToString(), " at rank ", part.rank,
                 "; replicas must hold the same bits: find what writes to one alone, and publish again");
  }
  return sum;
}

/// `parts` by rank.
Result<TensorDigest> Combine(std::span<const Part> parts) {
  const TensorInfo& tensor = parts.front().shard->tensor;
  WC_RETURN_IF_ERROR(plan::CheckTensor(tensor));
  std::vector<int> ranks;
  std::vector<int64_t> coords;
  for (const Part& part : parts) {
    const Box& box = part.shard->box;
    WC_RETURN_IF_ERROR(CheckAlike(parts.front(), part));
    WC_RETURN_IF_ERROR(plan::CheckBox(box, tensor));
    if (plan::ElementsOf(box) == 0) continue;
    ranks.push_back(part.rank);
    coords.insert(coords.end(), box.offset.begin(), box.offset.end());
    coords.insert(coords.end(), box.size.begin(), box.size.end());
  }
  plan::SortBoxesOfRanks(static_cast<int>(tensor.shape.size()), ranks, coords);
  WC_RETURN_IF_ERROR(plan::CheckCover(tensor, ranks, coords));
  return AddDistinct(parts);
}

}  // namespace

Result<TensorDigest> TensorDigest::FromString(std::string_view text) {
  const auto half = [&](size_t first, uint64_t& value) {
    const char* const end = text.data() + first + 16;
    const auto [read, error] = std::from_chars(text.data() + first, end, value, 16);
    return error == std::errc() && read == end && value < digest::kPrime;
  };
  TensorDigest digest;
  if (text.size() == 32 && half(0, digest.high) && half(16, digest.low)) return digest;
  return Error(Code::kInvalidArgument, "'", text,
               "' is not a digest; give what digest() returned, 32 hexadecimal digits");
}

std::string TensorDigest::ToString() const {
  char text[33];
  (void)std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(high),
                      static_cast<unsigned long long>(low));
  return text;
}

TensorDigest& TensorDigest::operator+=(const TensorDigest& other) {
  high = digest::AddInField(high, other.high);
  low = digest::AddInField(low, other.low);
  return *this;
}

Result<std::map<std::string, TensorDigest>> CombineDigests(std::span<const Digests> ranks) {
  std::map<std::string, std::vector<Part>> parts;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const ShardDigest& shard : ranks[rank])
      parts[shard.tensor.name].push_back({.shard = &shard, .rank = static_cast<int>(rank)});
  std::map<std::string, TensorDigest> digests;
  for (const auto& [name, held] : parts) {
    WC_ASSIGN_OR_RETURN(digests[name], Combine(held));
  }
  return digests;
}

}  // namespace weightcast
