#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace weightcast {

/// The items of a list with commas, without empty ones.
inline std::vector<std::string_view> SplitList(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) items.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return items;
}

}  // namespace weightcast
