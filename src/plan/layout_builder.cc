#include "plan/layout_builder.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "plan/cover.h"
#include "plan/layout_assembler.h"
#include "plan/pattern.h"

namespace weightcast::plan {
namespace {

bool IsEmpty(const Box& box) { return std::find(box.size.begin(), box.size.end(), 0) != box.size.end(); }

}  // namespace

Status LayoutBuilder::CheckSame(const TensorInfo& tensor, int rank) const {
  const auto at = seen_.find(tensor.name);
  if (at == seen_.end()) return Status::Ok();
  const TensorInfo& known = infos_[static_cast<size_t>(at->second.index)];
  if (at->second.rank < 0)
    return InvalidArgument("tensor '", tensor.name, "' is given as a pattern and by rank ", rank,
                           "; give it once");
  if (known == tensor) return Status::Ok();
  return InvalidArgument("tensor '", tensor.name, "' is ", NameOf(known.dtype), " ", ToString(known.shape),
                         " ", "on rank ", at->second.rank, " but ", NameOf(tensor.dtype), " ",
                         ToString(tensor.shape), " on rank ", rank,
                         "; every rank must give the same dtype and global shape");
}

Status LayoutBuilder::CheckRank(int rank, std::span<const Holding> holdings) const {
  if (rank < 0 || rank >= ranks_)
    return InvalidArgument("rank ", rank, " is outside 0..", ranks_ - 1,
                           "; check the rank and the world size");
  if (static_cast<size_t>(rank) < added_.size() && added_[static_cast<size_t>(rank)])
    return InvalidArgument("rank ", rank, " is given twice; every worker needs its own rank");
  for (const Holding& holding : holdings) {
    WC_RETURN_IF_ERROR(CheckTensor(holding.tensor));
    WC_RETURN_IF_ERROR(CheckBox(holding.box, holding.tensor));
    WC_RETURN_IF_ERROR(CheckSame(holding.tensor, rank));
  }
  return CheckHoldings(StrCat("rank ", rank), holdings);
}

int LayoutBuilder::Intern(const TensorInfo& tensor, int rank) {
  const auto [at, is_new] = seen_.try_emplace(tensor.name, Seen{static_cast<int>(infos_.size()), rank});
  if (is_new) infos_.push_back(tensor);
  return at->second.index;
}

Status LayoutBuilder::AddRank(int rank, std::span<const Holding> holdings) {
  if (ranks_ < 1 || ranks_ > kMaxRanks)
    return InvalidArgument("a layout of ", ranks_, " ranks was asked for; give 1 to ", kMaxRanks);
  WC_RETURN_IF_ERROR(CheckRank(rank, holdings));
  if (infos_.size() + holdings.size() > static_cast<size_t>(kMaxTensors))
    return InvalidArgument("there are more than ", kMaxTensors, " tensors; register fewer");
  for (const Holding& holding : holdings) {
    const int tensor = Intern(holding.tensor, rank);
    if (IsEmpty(holding.box)) continue;
    items_.push_back({tensor, rank, coords_.size()});
    coords_.insert(coords_.end(), holding.box.offset.begin(), holding.box.offset.end());
    coords_.insert(coords_.end(), holding.box.size.begin(), holding.box.size.end());
  }
  added_.resize(static_cast<size_t>(ranks_), false);
  added_[static_cast<size_t>(rank)] = true;
  return Status::Ok();
}

Status LayoutBuilder::AddPattern(const TensorInfo& tensor, const Pattern& pattern) {
  if (ranks_ < 1 || ranks_ > kMaxRanks)
    return InvalidArgument("a layout of ", ranks_, " ranks was asked for; give 1 to ", kMaxRanks);
  WC_RETURN_IF_ERROR(CheckTensor(tensor));
  if (const Status status = CheckPattern(pattern, static_cast<int>(tensor.shape.size()), ranks_);
      !status.ok())
    return InvalidArgument("tensor '", tensor.name, "': ", status.message());
  if (seen_.contains(tensor.name))
    return InvalidArgument("tensor '", tensor.name, "' is given twice; give it once");
  if (infos_.size() >= static_cast<size_t>(kMaxTensors))
    return InvalidArgument("there are more than ", kMaxTensors, " tensors; register fewer");
  patterns_.emplace_back(Intern(tensor, -1), pattern);
  return Status::Ok();
}

void LayoutBuilder::DeclareNotSent(std::string_view name) { not_sent_.insert(std::string(name)); }

Status LayoutBuilder::CheckAllAdded() const {
  if (added_.empty()) return Status::Ok();
  const auto missing = std::find(added_.begin(), added_.end(), false);
  if (missing == added_.end()) return Status::Ok();
  return InvalidArgument("rank ", missing - added_.begin(), " of ", ranks_, " was left out of the layout",
                         kReportBug);
}

Status LayoutBuilder::AddBoxes(const TensorInfo& tensor, bool not_sent, std::span<const Item> items,
                               LayoutAssembler& out) const {
  std::vector<int> ranks;
  std::vector<int64_t> coords;
  for (const Item& item : items) {
    const auto box = coords_.begin() + static_cast<ptrdiff_t>(item.coord);
    ranks.push_back(item.rank);
    coords.insert(coords.end(), box, box + static_cast<ptrdiff_t>(2 * tensor.shape.size()));
  }
  SortBoxesOfRanks(static_cast<int>(tensor.shape.size()), ranks, coords);
  if (const auto pattern = RecognisePattern(tensor.shape, ranks, coords)) {
    out.AddPatternPart(*pattern, 0);  // A pattern always covers its tensor.
    return Status::Ok();
  }
  if (!not_sent) WC_RETURN_IF_ERROR(CheckCover(tensor, ranks, coords));
  if (!ranks.empty()) out.AddBoxPart(ranks, coords);
  return Status::Ok();
}

Result<Layout> LayoutBuilder::Build() {
  WC_RETURN_IF_ERROR(CheckAllAdded());
  std::ranges::sort(items_, {}, [](const Item& item) { return std::pair(item.tensor, item.rank); });
  std::vector<const Pattern*> pattern_of(infos_.size(), nullptr);
  for (const auto& [tensor, pattern] : patterns_) pattern_of[static_cast<size_t>(tensor)] = &pattern;

  LayoutAssembler out;
  size_t next = 0;
  for (size_t t = 0; t < infos_.size(); ++t) {
    const bool not_sent = not_sent_.contains(infos_[t].name);
    out.AddTensor(infos_[t], not_sent);
    const size_t first = next;
    while (next < items_.size() && items_[next].tensor == static_cast<int32_t>(t)) ++next;
    if (pattern_of[t] != nullptr) {
      out.AddPatternPart(*pattern_of[t], 0);
    } else {
      WC_RETURN_IF_ERROR(AddBoxes(infos_[t], not_sent, std::span(items_).subspan(first, next - first), out));
    }
  }
  return std::move(out).Finish(ranks_);
}

}  // namespace weightcast::plan
