#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "plan/layout.h"
#include "plan/route.h"
#include "plan/rules.h"
#include "weightcast/status.h"

// FP8 with a scale for each block: docs/layout.md, "FP8".
namespace weightcast::plan {

/// Rows and columns of a block.
inline constexpr int64_t kBlockSize = 128;
/// No route of Transform::kQuantise is wider: a row of blocks fits into a transfer.
inline constexpr int64_t kMaxQuantisedColumns = 16384;

/// What a quantise rule makes of a tensor of the trainers.
struct Quantised {
  size_t rule = 0;     ///< Its place among the rules.
  std::string values;  ///< The name of the tensor of F8_E4M3.
  TensorInfo scales;
};

/// nullopt if the first rule that matches the name is of another kind, or there is none. Errors:
/// kInvalidArgument, naming the tensor, for one that cannot be quantised.
Result<std::optional<Quantised>> QuantisedBy(const NameRules& rules, const TensorInfo& tensor);

/// Whether a box has whole blocks of a matrix of this shape. Empty ones have.
bool HasWholeBlocks(const Box& box, const Shape& shape);
/// kInvalidArgument, naming tensor, rank and remedy, if the layout cuts a block of the matrix. `side`:
/// "trainer" or "inference rank".
Status CheckBlocks(const Layout& layout, int tensor, std::string_view side);
/// The same of one box. `holder`: "trainer 3".
Status CheckBlocks(const TensorInfo& tensor, const Box& box, std::string_view holder);

/// The scales of whole blocks, in the coordinates of the tensor of scales.
Box ScalesOf(const Box& blocks);
/// The other way round; `shape` is the matrix's.
Box BlocksOf(const Box& scales, const Shape& shape);

}  // namespace weightcast::plan
