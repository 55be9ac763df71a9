#pragma once

#include <vector>

#include "control/members.h"

namespace weightcast::control {

/// The groups that an event has touched. A rule that looks at one group alone has to look again only at
/// those.
class TouchedGroups {
 public:
  void Add(GroupId id);
  void AddAll();  ///< Also groups that come later in this event.
  /// By id, those of `groups`, which is by id. One that was touched may be gone.
  [[nodiscard]] std::vector<GroupId> Among(const std::vector<Group>& groups) const;
  void Clear();  ///< The event is over.

  /// No engine was touched since NoteQuiet, in this event or another.
  [[nodiscard]] bool quiet() const { return quiet_; }
  void NoteQuiet() { quiet_ = true; }

  friend bool operator==(const TouchedGroups&, const TouchedGroups&) = default;

 private:
  std::vector<GroupId> ids_;  ///< As they were touched, some more than once; none if all are.
  bool all_ = false;
  bool quiet_ = false;
};

}  // namespace weightcast::control
