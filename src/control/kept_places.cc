#include "control/kept_places.h"

#include <algorithm>

namespace weightcast::control {

void KeptPlaces::Keep(const protocol::Hello& hello, TimePoint until) {
  Group& group = groups_[{hello.model, hello.name.engine}];
  group.until = std::max(group.until, until);
  group.incarnations[{hello.name.role, hello.name.rank}] = hello.incarnation;
}

bool KeptPlaces::Bars(const protocol::Hello& hello, TimePoint now) {
  const auto group = groups_.find({hello.model, hello.name.engine});
  if (group == groups_.end()) return false;
  if (now >= group->second.until) {
    groups_.erase(group);
    return false;
  }
  const auto& kept = group->second.incarnations;
  const auto own = kept.find({hello.name.role, hello.name.rank});
  return own == kept.end() || own->second != hello.incarnation;
}

void KeptPlaces::Release(const protocol::Hello& hello) {
  const auto group = groups_.find({hello.model, hello.name.engine});
  if (group == groups_.end()) return;
  group->second.incarnations.erase({hello.name.role, hello.name.rank});
  if (group->second.incarnations.empty()) groups_.erase(group);
}

}  // namespace weightcast::control
