#include "control/touched_groups.h"

#include <gtest/gtest.h>

#include <vector>

namespace weightcast::control {
namespace {

std::vector<Group> GroupsOf(const std::vector<GroupId>& ids) {
  std::vector<Group> groups(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) groups[i].id = ids[i];
  return groups;
}

TEST(TouchedGroups, AreListedOnceEachAsLongAsTheyAreHere) {
  TouchedGroups touched;
  for (const GroupId id : {5, 2, 5, 3}) touched.Add(id);
  EXPECT_EQ(touched.Among(GroupsOf({kTrainers, 2, 4, 5})), (std::vector<GroupId>{2, 5}));
  touched.Clear();
  EXPECT_TRUE(touched.Among(GroupsOf({kTrainers, 2, 4, 5})).empty());
}

TEST(TouchedGroups, AreAllUntilTheEventIsOver) {
  TouchedGroups touched;
  touched.Add(2);
  touched.AddAll();
  touched.Add(2);
  EXPECT_EQ(touched.Among(GroupsOf({kTrainers, 2, 7})), (std::vector<GroupId>{kTrainers, 2, 7}));
  touched.Clear();
  EXPECT_TRUE(touched == TouchedGroups());
}

TEST(TouchedGroups, AreQuietUntilAnEngineIsTouched) {
  TouchedGroups touched;
  EXPECT_FALSE(touched.quiet()) << "nobody has looked yet";
  touched.NoteQuiet();
  touched.Add(kTrainers);
  touched.Clear();
  EXPECT_TRUE(touched.quiet()) << "in the next event too; a trainer is no engine";
  touched.Add(1);
  EXPECT_FALSE(touched.quiet());
  touched.NoteQuiet();
  touched.AddAll();
  EXPECT_FALSE(touched.quiet());
}

}  // namespace
}  // namespace weightcast::control
