#include "control/touched_groups.h"

#include <algorithm>

namespace weightcast::control {

void TouchedGroups::Add(GroupId id) {
  if (id != kTrainers) quiet_ = false;
  if (!all_ && (ids_.empty() || ids_.back() != id)) ids_.push_back(id);
}

void TouchedGroups::AddAll() {
  quiet_ = false;
  all_ = true;
  ids_.clear();
}

std::vector<GroupId> TouchedGroups::Among(const std::vector<Group>& groups) const {
  std::vector<GroupId> ids;
  if (all_) {
    ids.reserve(groups.size());
    for (const Group& group : groups) ids.push_back(group.id);
    return ids;
  }
  ids = ids_;
  std::ranges::sort(ids);
  const auto rest = std::ranges::unique(ids);
  ids.erase(rest.begin(), rest.end());
  std::erase_if(ids, [&](GroupId id) { return !std::ranges::binary_search(groups, id, {}, &Group::id); });
  return ids;
}

void TouchedGroups::Clear() {
  all_ = false;
  ids_.clear();
}

}  // namespace weightcast::control
