#include "control/command_rule.h"

#include "control/command_state.h"
#include "unit/control/rule_bench.h"

namespace weightcast::control {
namespace {

using protocol::Command;
using ::testing::_;
using Answer = Commands::Answer;

class CommandRuleTest : public RuleBench {
 protected:
  CommandRuleTest() { Add("a", 0); }
  const Group& Controlled() {
    Group& group = roster.Change(GroupOf("a"));
    group.controlled = true;
    roster.SetControl(group, {.session = 50, .incarnation = 1});
    return group;
  }

  CommandState state;
  CommandRule rule{context, state};
};

TEST_F(CommandRuleTest, WithoutAControlEverythingIsDone) {
  EXPECT_EQ(rule.Ask(GroupOf("a"), Command::kPause, {}), Answer::kDone);
  roster.Change(GroupOf("a")).controlled = true;
  EXPECT_EQ(rule.Ask(GroupOf("a"), Command::kPause, {}), Answer::kGone);
  EXPECT_TRUE(actions.empty());
}

TEST_F(CommandRuleTest, ACommandIsGivenOnceAndDoneWhenAnswered) {
  const Group& group = Controlled();
  EXPECT_EQ(rule.Ask(group, Command::kPause, {}), Answer::kAwaited);
  EXPECT_EQ(rule.Ask(group, Command::kPause, {}), Answer::kAwaited);
  EXPECT_EQ(Sent<protocol::EngineCommand>().size(), 1U);
  EXPECT_EQ(Done<SetTimer>().size(), 2U) << "each who waits has the whole time";
  EXPECT_CALL(engines, CommandDone(group.id));
  rule.OnMessage(group, protocol::EngineCommandResult{.order = 1, .status = {}});
  EXPECT_EQ(rule.Ask(group, Command::kPause, {}), Answer::kDone);
}

TEST_F(CommandRuleTest, AnAnswerToAnEarlierOrderIsDropped) {
  const Group& group = Controlled();
  rule.Ask(group, Command::kPause, {});
  rule.Ask(group, Command::kActivate, version);
  EXPECT_CALL(engines, CommandDone).Times(0);
  rule.OnMessage(group, protocol::EngineCommandResult{.order = 1, .status = {}});
  EXPECT_EQ(rule.Ask(group, Command::kActivate, version), Answer::kAwaited);
}

TEST_F(CommandRuleTest, WhoHasNotAnsweredInTimeIsOverdueUntilItDoes) {
  const Group& group = Controlled();
  rule.Ask(group, Command::kPause, {});
  EXPECT_TRUE(rule.Overdue(group).ok());
  EXPECT_EQ(rule.TimedOut(group).code(), Code::kTimedOut);
  EXPECT_EQ(rule.Overdue(group).code(), Code::kTimedOut);
  EXPECT_CALL(engines, CommandFailed(group.id, _));
  rule.OnMessage(group, protocol::EngineCommandResult{.order = 1, .status = {Code::kInternal, "no"}});
  EXPECT_TRUE(rule.Overdue(group).ok());
  EXPECT_EQ(last_error.code(), Code::kInternal);
}

TEST_F(CommandRuleTest, ANewControlHasNoOrders) {
  const Group& group = Controlled();
  rule.Ask(group, Command::kPause, {});
  EXPECT_CALL(planning, Unplan(group.id, false));
  rule.OnGone(group, {Code::kPeerDead, "gone"});
  EXPECT_EQ(state, CommandState{});
  EXPECT_EQ(group.control.session, 0U);
}

}  // namespace
}  // namespace weightcast::control
