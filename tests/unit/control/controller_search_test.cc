#include "control/controller_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "scratch_folder.h"
#include "unit/control/tokens.h"

namespace weightcast::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Status kGone(Code::kUnavailable, "gone");
const Status kNobody(Code::kUnavailable, "connection refused");
const Status kRefused(Code::kPermission, "does not know this token");
const Status kNoController(Code::kProtocol, "is no controller");

/// A trainer's search, over moments of the test's own.
class ControllerSearchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteToken(kFirstToken);
    options_.settings = *Settings::From({{"controller", "host:1"},
                                         {"token_file", folder_ + "/token"},
                                         {"lease", "5"},
                                         {"join_timeout", "60"}});
    options_.hello.name = {.role = protocol::Role::kTrainer, .engine = "", .rank = 0};
    options_.absence = std::make_shared<Absence>();
  }

  void WriteToken(const char* token) const {
    std::ofstream(folder_ + "/token") << token;
    std::filesystem::permissions(folder_ + "/token",
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  [[nodiscard]] ControllerSearch Begin() const {
    return {options_, *Token::Parse(kFirstToken, true, folder_ + "/token"), now_};
  }
  /// The next attempt is made with this token.
  void ExpectAttemptWith(ControllerSearch& search, const char* token) const {
    const auto tried = search.BeginAttempt(now_);
    ASSERT_TRUE(tried.ok()) << tried.status().ToString();
    const auto expected = Token::Parse(token, true, "")->ForWorker({.role = stream::Role::kTrainer});
    EXPECT_EQ(tried->Print().bytes(), expected->Print().bytes());
  }
  /// The pauses, in milliseconds, of so many attempts that fail at once.
  std::vector<int64_t> Pauses(ControllerSearch& search, size_t count) {
    std::vector<int64_t> pauses;
    while (pauses.size() < count) {
      EXPECT_TRUE(search.BeginAttempt(now_).ok());
      search.Fail(kNobody, now_);
      pauses.push_back(std::chrono::duration_cast<milliseconds>(search.next() - now_).count());
      now_ = search.next();
    }
    return pauses;
  }

  const test::ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  ClientOptions options_;
  TimePoint now_ = Clock::now();
};

TEST_F(ControllerSearchTest, PausesDoubleUpToTheirLimitUntilItIsFound) {
  ControllerSearch search = Begin();
  EXPECT_EQ(search.next(), now_) << "the first attempt needs no pause";
  EXPECT_THAT(Pauses(search, 8), ElementsAre(20, 40, 80, 160, 320, 640, 1000, 1000));
  search.OnFound(now_);
  EXPECT_TRUE(search.found());
  search.OnLost(kGone, now_);
  EXPECT_FALSE(search.found());
  EXPECT_EQ(search.next(), now_ + milliseconds(20));
  now_ = search.next();
  EXPECT_THAT(Pauses(search, 2), ElementsAre(40, 80));
}

TEST_F(ControllerSearchTest, AShortLeaseKeepsPausesShort) {
  options_.settings.lease = milliseconds(200);
  ControllerSearch search = Begin();
  EXPECT_THAT(Pauses(search, 4), ElementsAre(20, 40, 50, 50));
}

TEST_F(ControllerSearchTest, AnAttemptLastsForALeaseAndTwoSecondsAtLeast) {
  ControllerSearch search = Begin();
  EXPECT_FALSE(search.attempting());
  EXPECT_TRUE(search.BeginAttempt(now_).ok());
  EXPECT_TRUE(search.attempting());
  EXPECT_EQ(search.next(), now_ + seconds(5));
  search.Fail(kNobody, search.next());
  EXPECT_FALSE(search.attempting());
  options_.settings.lease = milliseconds(200);
  ControllerSearch hasty = Begin();
  EXPECT_TRUE(hasty.BeginAttempt(now_).ok());
  EXPECT_EQ(hasty.next(), now_ + seconds(2));
}

TEST_F(ControllerSearchTest, OnlyTheFirstSearchIsOverAfterJoinTimeout) {
  ControllerSearch search = Begin();
  const TimePoint end = now_ + seconds(60);
  EXPECT_TRUE(search.BeginAttempt(end - seconds(1)).ok());
  EXPECT_EQ(search.next(), end) << "before the attempt is over";
  EXPECT_TRUE(search.CheckOver(end - milliseconds(1)).ok());
  EXPECT_EQ(search.CheckOver(end).code(), Code::kTimedOut);
  EXPECT_EQ(search.CheckOver(end).message(),
            "no controller at host:1 for 60 s; check that it runs, and its address");
  search.Fail(kNobody, end);
  EXPECT_THAT(search.CheckOver(end).message(), HasSubstr("; last: connection refused"));
  search.OnFound(end);
  search.OnLost(kGone, end);
  EXPECT_TRUE(search.CheckOver(end + seconds(3600)).ok());
  options_.patient = true;
  EXPECT_TRUE(Begin().CheckOver(end + seconds(3600)).ok());
}

TEST_F(ControllerSearchTest, TheFirstFailureAloneIsToldAndTheAbsenceKnowsAll) {
  ControllerSearch search = Begin();
  EXPECT_THAT(options_.absence->Told().message(), HasSubstr("no answer yet from the controller at host:1"));
  EXPECT_TRUE(search.reason().ok());
  EXPECT_TRUE(search.Fail(kNobody, now_));
  EXPECT_FALSE(search.Fail(kNobody, now_));
  EXPECT_EQ(options_.absence->since(), now_);
  EXPECT_THAT(options_.absence->Told().message(), HasSubstr("connection refused"));
  search.OnFound(now_);
  EXPECT_FALSE(options_.absence->since());
  EXPECT_TRUE(search.reason().ok());
  search.OnLost(kGone, now_ + seconds(1));
  EXPECT_EQ(options_.absence->since(), now_ + seconds(1));
  EXPECT_EQ(search.reason(), kGone);
  EXPECT_FALSE(search.Fail(kNobody, now_ + seconds(2)));
  EXPECT_EQ(search.since(), now_ + seconds(1));
}

TEST_F(ControllerSearchTest, RemindersComeAfterTwiceAsLongEachTime) {
  ControllerSearch search = Begin();
  const TimePoint begin = now_;
  std::vector<int64_t> reminded;
  const LogLevel level = GetLogLevel();
  SetLogLevel(LogLevel::kWarning);
  for (int64_t second = 0; second <= 4 * 3600; ++second) {
    testing::internal::CaptureStderr();
    search.Fail(kNobody, begin + seconds(second));
    if (testing::internal::GetCapturedStderr().find(StrCat("for ", second, " s now")) != std::string::npos)
      reminded.push_back(second);
  }
  testing::internal::CaptureStderr();
  search.OnFound(begin + seconds(20000));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("has answered, after 20000 s"));
  SetLogLevel(level);
  EXPECT_THAT(reminded, ElementsAre(15, 30, 60, 120, 240, 480, 960, 1920, 3840, 7440, 11040));
}

TEST_F(ControllerSearchTest, AFirstSearchEndsWithARefusedTokenUnlessTheFileHasAnother) {
  ControllerSearch search = Begin();
  ExpectAttemptWith(search, kFirstToken);
  const Status over = search.OnStreamEnded(kRefused, now_);
  EXPECT_EQ(over.code(), Code::kPermission);
  EXPECT_EQ(over.message(),
            StrCat("does not know this token (this process's token is from ", folder_, "/token)"));
  WriteToken(kSecondToken);
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_).ok());
  ExpectAttemptWith(search, kSecondToken);
  EXPECT_FALSE(search.OnStreamEnded(kRefused, now_).ok()) << "the same again";
}

TEST_F(ControllerSearchTest, ALaterSearchTriesTheGoodTokenAndTheOneInTheFile) {
  ControllerSearch search = Begin();
  search.OnFound(now_);
  search.OnLost(kGone, now_);
  WriteToken(kSecondToken);
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_).ok());
  ExpectAttemptWith(search, kSecondToken);
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_).ok());
  ExpectAttemptWith(search, kFirstToken);
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_).ok());
  ExpectAttemptWith(search, kSecondToken);
  search.OnFound(now_);  // So the second one is good.
  search.OnLost(kGone, now_);
  std::filesystem::remove(folder_ + "/token");
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_).ok());
  ExpectAttemptWith(search, kSecondToken);
}

TEST_F(ControllerSearchTest, ALaterSearchIsOverWhenTheTokenIsRefusedForJoinTimeoutOnEnd) {
  ControllerSearch search = Begin();
  search.OnFound(now_);
  search.OnLost(kGone, now_);
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_).ok());
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_ + seconds(59)).ok());
  EXPECT_TRUE(search.OnStreamEnded(kNobody, now_ + seconds(59)).ok()) << "something else";
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_ + seconds(60)).ok());
  EXPECT_TRUE(search.OnStreamEnded(kRefused, now_ + seconds(119)).ok());
  EXPECT_EQ(search.OnStreamEnded(kRefused, now_ + seconds(120)).code(), Code::kPermission);
}

TEST_F(ControllerSearchTest, WhatIsNoControllerEndsItButForALaterSearch) {
  ControllerSearch search = Begin();
  EXPECT_EQ(search.OnStreamEnded(kNoController, now_), kNoController);
  search.OnFound(now_);
  EXPECT_EQ(search.OnStreamEnded(kNoController, now_), kNoController);
  search.OnLost(kGone, now_);
  EXPECT_TRUE(search.OnStreamEnded(kNoController, now_).ok()) << "the port is another's for a while";
}

}  // namespace
}  // namespace weightcast::control
