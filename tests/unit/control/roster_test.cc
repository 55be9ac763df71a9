#include "control/roster.h"

#include <gtest/gtest.h>

#include <vector>

namespace weightcast::control {
namespace {

Worker WorkerOf(SessionId session, GroupId group, uint32_t rank) {
  Worker worker;
  worker.session = session;
  worker.group = group;
  worker.rank = rank;
  return worker;
}

/// Two trainers, and engine a of two ranks, which is group 1.
Roster MakeRoster() {
  Roster roster;
  roster.SetWorldSize(roster.Change(roster.trainers()), 2);
  roster.SetWorldSize(roster.AddGroup("a"), 2);
  roster.Add(WorkerOf(1, kTrainers, 0));
  roster.Add(WorkerOf(2, kTrainers, 1));
  roster.Add(WorkerOf(3, 1, 1));
  roster.Add(WorkerOf(4, 1, 0));
  roster.Untouch();
  return roster;
}

TEST(Roster, FindsWorkersAndEngines) {
  Roster roster = MakeRoster();
  const Group& engine = *roster.Named("a");
  EXPECT_EQ(engine.id, 1U);
  EXPECT_EQ(roster.Named("")->id, kTrainers);
  EXPECT_EQ(roster.Named("b"), nullptr);
  EXPECT_EQ(roster.MemberOf(engine, 0)->session, 4U);
  EXPECT_EQ(roster.MemberOf(engine, 2), nullptr);
  EXPECT_EQ(roster.MembersOf(engine), (std::vector<SessionId>{3, 4}));
  roster.Remove(4);
  EXPECT_EQ(roster.MemberOf(engine, 0), nullptr);
  EXPECT_EQ(roster.Find(4), nullptr);
  EXPECT_EQ(roster.empty_groups(), 0U);
  roster.Remove(3);
  EXPECT_EQ(roster.empty_groups(), 1U);
  roster.RemoveGroup(1);
  EXPECT_EQ(roster.Named("a"), nullptr);
}

TEST(Roster, KnowsWhatAWholeEngineServes) {
  Roster roster = MakeRoster();
  const Group& engine = *roster.Named("a");
  const Version version{.run = 1, .number = 5, .origin = 7};
  const auto serve = [&](SessionId session, const Version& served) {
    auto edit = roster.Change(*roster.Find(session));
    edit->state = protocol::EngineState::kServing;
    edit->version = served;
  };
  serve(3, version);
  EXPECT_LT(engine.served.number, 0);
  serve(4, {.run = 1, .number = 4, .origin = 7});
  EXPECT_LT(engine.served.number, 0) << "a mixture";
  serve(4, version);
  EXPECT_EQ(engine.served, version);
  roster.Change(*roster.Find(3))->state = protocol::EngineState::kUpdating;
  EXPECT_LT(engine.served.number, 0);
}

TEST(Roster, CountsWhatTrainersOffer) {
  Roster roster = MakeRoster();
  const auto publish = [&](SessionId session, int64_t number) {
    auto edit = roster.Change(*roster.Find(session));
    edit->offered = number;
    edit->waiting = true;
  };
  EXPECT_EQ(roster.CommonOffer(), -1);
  publish(1, 3);
  EXPECT_EQ(roster.CommonOffer(), -1);
  EXPECT_FALSE(roster.AnyPassed());
  publish(2, 4);
  EXPECT_TRUE(roster.AnyPassed()) << "3 cannot be completed any more";
  publish(1, 4);
  EXPECT_EQ(roster.CommonOffer(), 4);
  EXPECT_EQ(roster.Offering(4), 2U);
  EXPECT_EQ(roster.waiting(), 2U);
  roster.Remove(1);
  EXPECT_EQ(roster.waiting(), 1U);
}

TEST(Roster, CountsWhoHasNotPreparedTheEpoch) {
  Roster roster = MakeRoster();
  roster.BeginEpoch(1);
  for (const SessionId session : {1, 3, 4}) roster.Change(*roster.Find(session))->planned = 1;
  EXPECT_EQ(roster.unprepared(), 3U);
  roster.Change(*roster.Find(3))->prepared = 1;
  roster.Remove(4);
  EXPECT_EQ(roster.unprepared(), 1U);
  roster.BeginEpoch(2);
  EXPECT_EQ(roster.unprepared(), 0U);
}

TEST(Roster, TellsWhichGroupsAnEventHasTouched) {
  Roster roster = MakeRoster();
  EXPECT_TRUE(roster.Touched().empty());
  roster.Change(*roster.Find(3))->connected = false;
  EXPECT_EQ(roster.Touched(), std::vector<GroupId>{1});
  roster.NoteQuiet();
  roster.Change(*roster.Find(1))->hold = true;
  EXPECT_TRUE(roster.quiet()) << "a trainer is no engine";
  EXPECT_EQ(roster.Touched(), (std::vector<GroupId>{kTrainers, 1}));
  roster.Untouch();
  roster.Change(*roster.Find(3))->state = protocol::EngineState::kSuspended;
  EXPECT_FALSE(roster.quiet());
  EXPECT_EQ(roster.Touched(), (std::vector<GroupId>{kTrainers, 1})) << "the trainers wait for who sleeps";
}

}  // namespace
}  // namespace weightcast::control
