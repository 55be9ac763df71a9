#include "control/engine_state.h"

#include <gtest/gtest.h>

namespace weightcast::control {
namespace {

TEST(EnginesState, CountsStepsOfEngines) {
  EnginesState engines;
  for (const GroupId group : {2, 1}) engines.targets.emplace_back().group = group;
  engines.Index();
  Target& target = *engines.Of(2);
  EXPECT_EQ(engines.ungranted(), 2U);
  engines.Move(target, EngineStep::kWriting);
  EXPECT_EQ(engines.ungranted(), 1U);
  EXPECT_EQ(engines.counts().Before(EngineStep::kWriting), 1U);
  engines.Move(target, EngineStep::kGranting, 1);
  EXPECT_EQ(engines.ungranted(), 1U) << "the next part keeps nobody waiting";
  engines.Move(target, EngineStep::kOut);
  engines.Move(*engines.Of(1), EngineStep::kDone);
  EXPECT_EQ(engines.counts().At(EngineStep::kOut), 1U);
  EXPECT_EQ(engines.counts().At(EngineStep::kDone), 1U);
  EXPECT_EQ(engines.Of(3), nullptr);
}

}  // namespace
}  // namespace weightcast::control
