#include "worker/send_report.h"

#include <gtest/gtest.h>

namespace weightcast::worker {
namespace {

using protocol::SpanKind;

constexpr Duration kAgo = std::chrono::seconds(7);

class Reporting : public ::testing::Test {
 protected:
  Reporting() { EXPECT_TRUE(loop_.Start().ok()); }
  ~Reporting() override { loop_.Stop(); }

  void Offered(int64_t number) {
    loop_.RunAndWait([&] { report_.Offered(number, Clock::now() - kAgo); });
  }
  /// Sends one part of this version, which has no spans of its own.
  std::optional<protocol::Spans> Send(int64_t number, uint32_t part = 0) {
    const protocol::UpdateId id{
        .term = {.number = 1, .id = 2}, .epoch = 1, .sequence = static_cast<uint64_t>(number)};
    std::optional<protocol::Spans> spans;
    loop_.RunAndWait([&] {
      report_.Begun({.update = id, .version = {.run = 1, .number = number}, .part = part});
      spans = report_.Fenced({.update = id, .destination = 0, .part = part});
    });
    return spans;
  }

  Loop loop_{"wc-test"};
  SendReport report_{loop_};
};

TEST_F(Reporting, ATrainerTellsHowLongItWaitedForItsStart) {
  Offered(4);
  const auto spans = Send(4);
  ASSERT_TRUE(spans);
  ASSERT_EQ(spans->spans.size(), 1U);
  EXPECT_EQ(spans->spans[0].kind, SpanKind::kGate);
  EXPECT_EQ(spans->spans[0].peer, -1);
  EXPECT_GE(spans->spans[0].seconds, Seconds(kAgo));
  EXPECT_LT(spans->spans[0].seconds, Seconds(kAgo) + 60);
}

TEST_F(Reporting, OnlyTheFirstStartOfAVersionCounts) {
  Offered(4);
  EXPECT_TRUE(Send(4));
  EXPECT_FALSE(Send(4, 1));
}

TEST_F(Reporting, WhatWasSupersededIsForgotten) {
  Offered(3);
  Offered(4);
  EXPECT_TRUE(Send(4));
  EXPECT_FALSE(Send(3));
}

TEST_F(Reporting, WhoIsNeverToldToSendKeepsABoundedNumber) {
  for (int64_t number = 1; number <= 100; ++number) Offered(number);
  EXPECT_FALSE(Send(1));
  EXPECT_TRUE(Send(100));
}

TEST_F(Reporting, AnEngineThatSendsToOthersHasPublishedNothing) { EXPECT_FALSE(Send(4)); }

}  // namespace
}  // namespace weightcast::worker
