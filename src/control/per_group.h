#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "control/members.h"

namespace weightcast::control {

/// What one rule keeps of each group. A group for which nothing was kept yet has T{}.
template <typename T>
class PerGroup {
 public:
  [[nodiscard]] const T& Of(GroupId id) const {
    static const T kNothing{};
    const Entry* entry = FindSorted(entries_, id, &Entry::first);
    return entry == nullptr ? kNothing : entry->second;
  }
  /// Valid until another group is edited or removed.
  T& Edit(GroupId id) {
    auto at = std::ranges::lower_bound(entries_, id, {}, &Entry::first);
    if (at == entries_.end() || at->first != id) at = entries_.insert(at, {id, T{}});
    return at->second;
  }
  void Remove(GroupId id) {
    std::erase_if(entries_, [id](const Entry& entry) { return entry.first == id; });
  }

  friend bool operator==(const PerGroup& a, const PerGroup& b) { return a.Kept() == b.Kept(); }

 private:
  using Entry = std::pair<GroupId, T>;
  [[nodiscard]] std::vector<Entry> Kept() const {
    std::vector<Entry> kept = entries_;
    std::erase_if(kept, [](const Entry& entry) { return entry.second == T{}; });
    return kept;
  }

  std::vector<Entry> entries_;  ///< By group.
};

}  // namespace weightcast::control
