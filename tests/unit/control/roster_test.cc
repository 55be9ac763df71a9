#include "control/roster.h"

#include <gtest/gtest.h>

#include <vector>

#include "control/roster_facts.h"

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
  roster.touched().Clear();
  return roster;
}

TEST(Roster, FindsWorkersAndEngines) {
  Roster roster = MakeRoster();
  const Group& engine = *roster.Named("a");
  EXPECT_EQ(engine.id, 1U);
  EXPECT_EQ(roster.Named("")->id, kTrainers);
  EXPECT_EQ(roster.Named("b"), nullptr);
  EXPECT_EQ(WorkerAt(roster, engine, 0)->session, 4U);
  EXPECT_EQ(WorkerAt(roster, engine, 2), nullptr);
  EXPECT_EQ(MembersOf(engine), (std::vector<SessionId>{3, 4}));
  roster.Remove(4);
  EXPECT_EQ(WorkerAt(roster, engine, 0), nullptr);
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
  EXPECT_EQ(roster.offers().Common(), -1);
  publish(1, 3);
  EXPECT_EQ(roster.offers().Common(), -1);
  EXPECT_FALSE(roster.offers().AnyPassed());
  publish(2, 4);
  EXPECT_TRUE(roster.offers().AnyPassed()) << "3 cannot be completed any more";
  publish(1, 4);
  EXPECT_EQ(roster.offers().Common(), 4);
  EXPECT_EQ(roster.offers().Of(4), 2U);
  EXPECT_EQ(roster.offers().waiting(), 2U);
  roster.Remove(1);
  EXPECT_EQ(roster.offers().waiting(), 1U);
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
  const auto touched = [&] { return roster.touched().Among(roster.groups()); };
  EXPECT_TRUE(touched().empty());
  roster.Change(*roster.Find(3))->connected = false;
  EXPECT_EQ(touched(), std::vector<GroupId>{1});
  roster.touched().NoteQuiet();
  roster.Change(*roster.Find(1))->hold = true;
  EXPECT_TRUE(roster.touched().quiet()) << "a trainer is no engine";
  EXPECT_EQ(touched(), (std::vector<GroupId>{kTrainers, 1}));
  roster.touched().Clear();
  roster.Change(*roster.Find(3))->state = protocol::EngineState::kSuspended;
  EXPECT_FALSE(roster.touched().quiet());
  EXPECT_EQ(touched(), (std::vector<GroupId>{kTrainers, 1})) << "the trainers wait for who sleeps";
}

}  // namespace
}  // namespace weightcast::control
