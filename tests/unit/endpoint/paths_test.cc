#include "endpoint/paths.h"

#include <gtest/gtest.h>

#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

/// The responder's side of a choice between "fast" and "slow", step by step.
class PathsTest : public EndpointTest {
 protected:
  PathsTest() {
    const Status taken = paths.OnOffers(EncodeOffers({{"fast", true, ""}, {"slow", true, ""}}), Soon());
    EXPECT_TRUE(taken.ok());
    EXPECT_EQ(links, 2U);
    sent.clear();
  }
  Paths::Hooks Record() {
    return {.add_link = [this](transport::Transport*) { return LinkId{++links}; },
            .close_link = [this](LinkId link) { closed.push_back(link); },
            .drop_link = [](LinkId) {},
            .send = [this](const Message& message) { sent.push_back(message); },
            .chosen = [this] { ++chosen; },
            .failed = [this](const Status& reason) { failure = reason; }};
  }

  static constexpr LinkId kFast{1};
  static constexpr LinkId kSlow{2};
  uint32_t links = 0;
  std::vector<LinkId> closed;
  std::vector<Message> sent;
  int chosen = 0;
  Status failure;
  FakeTransport fast{"fast", {}};
  FakeTransport slow{"slow", {}};
  Paths paths{Role::kResponder, {{"fast", &fast}, {"slow", &slow}}, {}, Record()};
};

TEST_F(PathsTest, WhatFailsBetweenReadyAndTheChoiceIsStillChosen) {
  paths.OnReady(kFast, 2);
  paths.OnDown(kFast, {Code::kPeerDead, "gone"});
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_FALSE(ParsePath(sent[1].payload)->ready) << "an initiator that has not chosen takes another";
  ASSERT_TRUE(paths.OnChosen(EncodeChosen(0)).ok());
  EXPECT_EQ(chosen, 1) << "for the initiator this connection was there";
  EXPECT_EQ(paths.chosen()->lost.code(), Code::kPeerDead);
  EXPECT_TRUE(failure.ok());
  EXPECT_EQ(closed, std::vector{kSlow});
}

TEST_F(PathsTest, WhatFailsBeforeItIsReadyCannotBeChosen) {
  paths.OnDown(kFast, {Code::kUnavailable, "no way"});
  EXPECT_EQ(closed, std::vector{kFast});
  EXPECT_TRUE(paths.OnChosen(EncodeChosen(0)).ok());
  EXPECT_EQ(failure.code(), Code::kUnavailable);
  EXPECT_EQ(chosen, 0);
}

TEST_F(PathsTest, LanesThatFailBeforeTheChoiceAreRemembered) {
  paths.OnReady(kFast, 3);
  for (const uint32_t lane : {1U, 2U}) paths.OnLaneDown(kFast, lane, {Code::kUnavailable, "no way"});
  paths.OnLaneUp(kFast, 2);
  ASSERT_TRUE(paths.OnChosen(EncodeChosen(0)).ok());
  const auto& down = paths.chosen()->lanes_down;
  ASSERT_EQ(down.size(), 1U);
  EXPECT_EQ(down.at(1).message(), "no way");
}

}  // namespace
}  // namespace weightcast::endpoint
