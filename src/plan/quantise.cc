#include "plan/quantise.h"

#include <algorithm>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::plan {
namespace {

/// Whether a tensor of the trainers goes by this rule, and not by one after it.
bool Matches(const Rule& rule, const std::string& name) {
  const auto matches = [&](const std::string& pattern) { return MatchName(pattern, name).has_value(); };
  if (const auto* fuse = std::get_if<Fuse>(&rule)) return std::ranges::any_of(fuse->from, matches);
  if (const auto* declared = std::get_if<NotSent>(&rule))
    return declared->side != Side::kInference && matches(declared->name);
  if (const auto* rename = std::get_if<Rename>(&rule)) return matches(rename->from);
  if (const auto* split = std::get_if<Split>(&rule)) return matches(split->from);
  if (const auto* tie = std::get_if<Tie>(&rule)) return matches(tie->from);
  return matches(std::get<Quantise>(rule).from);
}

int64_t BlocksIn(int64_t elements) { return (elements + kBlockSize - 1) / kBlockSize; }

}  // namespace

Result<std::optional<Quantised>> QuantisedBy(const NameRules& rules, const TensorInfo& tensor) {
  const auto first =
      std::ranges::find_if(rules.rules, [&](const Rule& rule) { return Matches(rule, tensor.name); });
  const auto* rule = first == rules.rules.end() ? nullptr : std::get_if<Quantise>(&*first);
  if (rule == nullptr) return std::optional<Quantised>();
  const auto refuse = [&](std::string_view has, std::string_view needed) {
    return InvalidArgument("rule ", first - rules.rules.begin() + 1, " quantises tensor '", tensor.name,
                           "' of the trainers, which has ", has, "; it must have ", needed,
                           ", or a rule before this one must match it");
  };
  if (tensor.shape.size() != 2) return refuse(StrCat("the shape ", ToString(tensor.shape)), "two dimensions");
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16)
    return refuse(StrCat("the dtype ", NameOf(tensor.dtype)), "F32, F16 or BF16");
  const auto captures = *MatchName(rule->from, tensor.name);
  return std::optional(
      Quantised{.rule = static_cast<size_t>(first - rules.rules.begin()),
                .values = ExpandName(ValuesOf(*rule), captures),
                .scales = {.name = ExpandName(rule->scales, captures),
                           .dtype = DType::kF32,
                           .shape = {BlocksIn(tensor.shape[0]), BlocksIn(tensor.shape[1])}}});
}

bool HasWholeBlocks(const Box& box, const Shape& shape) {
  if (ElementsOf(box) == 0) return true;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t end = box.offset[d] + box.size[d];
    if (box.offset[d] % kBlockSize != 0 || (end % kBlockSize != 0 && end != shape[d])) return false;
  }
  return true;
}

Status CheckBlocks(const TensorInfo& tensor, const Box& box, std::string_view holder) {
  if (HasWholeBlocks(box, tensor.shape)) return Status::Ok();
  return InvalidArgument("tensor '", tensor.name, "' ", ToString(tensor.shape), " is quantised in blocks of ",
                         kBlockSize, " x ", kBlockSize, ", but the box ", ToString(box), " of ", holder,
                         " cuts blocks; cut at multiples of ", kBlockSize,
                         " in both dimensions, or let ranks hold more of it");
}

Status CheckBlocks(const Layout& layout, int tensor, std::string_view side) {
  Status status;
  layout.ForEachBox(tensor, [&](int rank, const Box& box) {
    if (status.ok()) status = CheckBlocks(layout.tensor(tensor), box, StrCat(side, " ", rank));
  });
  return status;
}

Box ScalesOf(const Box& blocks) {
  Box scales = blocks;
  for (size_t d = 0; d < blocks.size.size(); ++d) {
    scales.offset[d] /= kBlockSize;
    scales.size[d] = BlocksIn(blocks.size[d]);
  }
  return scales;
}

Box BlocksOf(const Box& scales, const Shape& shape) {
  Box blocks = scales;
  for (size_t d = 0; d < shape.size(); ++d) {
    blocks.offset[d] *= kBlockSize;
    blocks.size[d] = std::min((scales.offset[d] + scales.size[d]) * kBlockSize, shape[d]) - blocks.offset[d];
  }
  return blocks;
}

}  // namespace weightcast::plan
