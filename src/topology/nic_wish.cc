#include "topology/nic_wish.h"

#include <algorithm>

#include "base/split_list.h"
#include "base/strings.h"

namespace weightcast::topology {

NicWish::NicWish(std::string_view setting) : except_(setting.starts_with('^')) {
  if (except_) setting.remove_prefix(1);
  for (const std::string_view name : SplitList(setting)) names_.emplace_back(name);
}

bool NicWish::Allows(std::string_view device, int port) const {
  const bool named = std::ranges::any_of(
      names_, [&](const std::string& name) { return name == device || name == StrCat(device, ":", port); });
  return names_.empty() || named != except_;
}

}  // namespace weightcast::topology
