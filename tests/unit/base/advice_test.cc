#include "base/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace weightcast {
namespace {

using testing::HasSubstr;

TEST(Advice, WhatTheSystemRefusesHasARemedyOfItsOwn) {
  EXPECT_EQ(ErrnoAndAdvice(EMFILE), "Too many open files (24); raise the limit of open files (ulimit -n)");
  EXPECT_THAT(ErrnoAndAdvice(ENFILE), HasSubstr("fs.file-max"));
  EXPECT_THAT(ErrnoAndAdvice(ENOMEM), HasSubstr("more memory"));
  EXPECT_THAT(ErrnoAndAdvice(EPERM), HasSubstr("seccomp"));
  EXPECT_THAT(ErrnoAndAdvice(ESRCH), HasSubstr("that process has ended"));
  EXPECT_THAT(ErrnoAndAdvice(EIO), HasSubstr("dmesg"));
}

TEST(Advice, AViolationNamesWhoBrokeTheProtocol) {
  const Status found = BrokeProtocol("the peer (pid 7)", {Code::kProtocol, "it sent nothing"});
  EXPECT_EQ(found.code(), Code::kProtocol);
  EXPECT_EQ(found.message(),
            "the peer (pid 7) broke the protocol and was disconnected: it sent nothing; run the same release "
            "of weightcast on both "
            "sides");
  EXPECT_EQ(BrokeProtocol("the peer", {Code::kUnavailable, "it is gone"}).message(), "it is gone");
}

TEST(Advice, AViolationThatSaysWhatToDoIsNotToldTwice) {
  const Status found = BrokeProtocol("the peer", {Code::kProtocol, "an old hello; run the same release"});
  EXPECT_EQ(found.message(),
            "the peer broke the protocol and was disconnected: an old hello; run the same release");
}

TEST(Advice, AnInterruptionNamesTheCall) {
  const Status found = InterruptedCall("accept");
  EXPECT_EQ(found.code(), Code::kCancelled);
  EXPECT_THAT(found.message(), HasSubstr("accept was interrupted"));
  EXPECT_THAT(found.message(), HasSubstr("make the same call again"));
}

}  // namespace
}  // namespace weightcast
