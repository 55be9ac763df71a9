#include "topology/nic_wish.h"

#include <algorithm>

#include "base/strings.h"

namespace weightcast::topology {

NicWish::NicWish(std::string_view setting) : except_(setting.starts_with('^')) {
  if (except_) setting.remove_prefix(1);
  while (!setting.empty()) {
    const size_t comma = std::min(setting.find(','), setting.size());
    if (comma > 0) names_.emplace_back(setting.substr(0, comma));
    setting.remove_prefix(std::min(comma + 1, setting.size()));
  }
}

bool NicWish::Allows(std::string_view device, int port) const {
  const bool named = std::ranges::any_of(
      names_, [&](const std::string& name) { return name == device || name == StrCat(device, ":", port); });
  return names_.empty() || named != except_;
}

}  // namespace weightcast::topology
