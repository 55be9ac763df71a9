#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

class EventLoopTest : public EndpointTest {
 protected:
  static bool IsReadable(int fd, Duration patience = Duration::zero()) {
    pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&one, 1, static_cast<int>(Seconds(patience) * 1000)) == 1;
  }
  static PartyOptions Looped() { return {.callbacks = Callbacks::kInProgress}; }
};

TEST_F(EventLoopTest, WithoutItThereIsNoDescriptor) {
  Party a;
  EXPECT_EQ(a->descriptor(), -1);
  EXPECT_EQ(a->Progress(), 0U);
}

TEST_F(EventLoopTest, CallbacksRunInsideProgressAndNowhereElse) {
  Pair pair(4096, Access::kReadWrite, Looped());
  const int fd = pair.a->descriptor();
  ASSERT_GE(fd, 0);
  while (pair.a->Progress() > 0) {
  }
  std::optional<std::thread::id> ran;
  auto write = pair.WriteAll({.on_end = [&](const Status& status) {
    EXPECT_TRUE(status.ok());
    ran = std::this_thread::get_id();
  }});
  ASSERT_TRUE(write->Wait(Soon()).ok());
  EXPECT_FALSE(ran) << "nobody has called Progress()";
  EXPECT_TRUE(IsReadable(fd, kPatience));
  EXPECT_TRUE(IsReadable(fd)) << "until it is called";
  EXPECT_EQ(pair.a->Progress(), 1U);
  EXPECT_EQ(ran, std::this_thread::get_id());
  EXPECT_FALSE(IsReadable(fd));
  EXPECT_EQ(pair.a->Progress(), 0U);
}

TEST_F(EventLoopTest, ACallbackMayBeginTheNextTransfer) {
  Pair pair(4096, Access::kReadWrite, Looped());
  int done = 0;
  std::function<void(const Status&)> next = [&](const Status& status) {
    ASSERT_TRUE(status.ok());
    if (++done == 100) return;
    ASSERT_TRUE(pair.WriteAll({.on_end = next}).ok());
  };
  ASSERT_TRUE(pair.WriteAll({.on_end = next}).ok());
  while (done < 100) {
    ASSERT_TRUE(IsReadable(pair.a->descriptor(), kPatience));
    pair.a->Progress();
  }
  EXPECT_EQ(pair.source, pair.target);
}

TEST_F(EventLoopTest, ALoopThatSleepsKeepsItsConnections) {
  const PartyOptions short_lease{.settings = {{"lease", "0.2"}}, .callbacks = Callbacks::kInProgress};
  Pair pair(4096, Access::kReadWrite, short_lease,
            {.role = "inference", .rank = 1, .settings = {{"lease", "0.2"}}});
  std::this_thread::sleep_for(FromSeconds(1));  // Five leases.
  EXPECT_TRUE(pair.to_b->status().ok());
  EXPECT_TRUE(pair.to_a->status().ok());
  EXPECT_TRUE(pair.WriteAll()->Wait(Soon()).ok());
}

TEST_F(EventLoopTest, WhatWaitsAtTheEndIsCalledByTheDestructor) {
  bool ended = false;
  {
    Pair pair(4096, Access::kReadWrite, Looped());
    ASSERT_TRUE(pair.WriteAll({.on_end = [&](const Status&) { ended = true; }})->Wait(Soon()).ok());
    pair.a.Destroy();
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace weightcast::endpoint
