#include "control/link_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

namespace weightcast::control {
namespace {

using ::testing::ElementsAre;

const Status kBreak(Code::kUnavailable, "gone");

/// Notes the callbacks; used once they have all run.
struct Notes {
  std::vector<std::string> all;
  LinkReporter::OnState OnState() {
    return [this](LinkState state, const Status& status) {
      all.emplace_back(state == LinkState::kEnded    ? "ended"
                       : state == LinkState::kBroken ? "broken: " + status.message()
                                                     : "connected");
    };
  }
};

TEST(LinkReporter, CallsBackInOrderOnAnotherThread) {
  Notes notes;
  {
    LinkReporter reporter(notes.OnState());
    EXPECT_EQ(reporter.state(), LinkState::kBroken);
    EXPECT_TRUE(reporter.status().ok());
    reporter.Run([&, self = std::this_thread::get_id()] {
      EXPECT_NE(std::this_thread::get_id(), self);
      notes.all.emplace_back("welcome");
    });
    reporter.Report(LinkState::kConnected, Status::Ok());
    reporter.Run([&] { notes.all.emplace_back("message"); });
    reporter.Report(LinkState::kBroken, kBreak);
    reporter.Report(LinkState::kEnded, kBreak);
  }
  EXPECT_THAT(notes.all, ElementsAre("welcome", "connected", "message", "broken: gone", "ended"));
}

TEST(LinkReporter, ShowsTheStateWhileACallbackBlocks) {
  Notes notes;
  std::promise<void> go_on;
  LinkReporter reporter(notes.OnState());
  reporter.Run([&] { go_on.get_future().wait(); });
  reporter.Report(LinkState::kBroken, kBreak);
  EXPECT_EQ(reporter.status(), kBreak);
  std::thread waiter([&] { reporter.WaitEnded(weightcast::kNever); });
  reporter.Report(LinkState::kEnded, kBreak);
  waiter.join();
  EXPECT_EQ(reporter.state(), LinkState::kEnded);
  go_on.set_value();
}

TEST(LinkReporter, OnceQuietTheEndAloneIsReported) {
  Notes notes;
  std::promise<void> go_on;
  {
    LinkReporter reporter(notes.OnState());
    reporter.Run([&] { go_on.get_future().wait(); });
    reporter.Report(LinkState::kConnected, Status::Ok());
    reporter.Run([&] { notes.all.emplace_back("message"); });
    reporter.Report(LinkState::kEnded, kBreak);
    reporter.Quiet();
    go_on.set_value();
  }
  EXPECT_THAT(notes.all, ElementsAre("ended"));
}

}  // namespace
}  // namespace weightcast::control
