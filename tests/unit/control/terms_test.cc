#include "control/terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "protocol/limits.h"

namespace weightcast::control {
namespace {

using protocol::kMaxTerm;
using protocol::kMaxTermJump;
using protocol::Term;
using testing::AllOf;
using testing::HasSubstr;

uint64_t After(const Term& own, const Term& told) {
  const auto number = NumberAfter(own, told);
  EXPECT_TRUE(number.ok()) << number.status().ToString();
  return number.ok() ? *number : 0;
}

TEST(Terms, AControllerStaysInItsTermForWhoHasFollowedNoneThatIsLater) {
  const Term own{.number = 7, .id = 100};
  for (const Term& told : {Term{}, Term{.number = 1, .id = UINT64_MAX}, Term{.number = 6, .id = UINT64_MAX},
                           Term{.number = 7, .id = 99}, own})
    EXPECT_EQ(After(own, told), 7U) << told.number << " " << told.id;
}

TEST(Terms, AControllerGoesAboveALaterTerm) {
  EXPECT_EQ(After({.number = 1, .id = 100}, {.number = 2, .id = 1}), 3U);
  EXPECT_EQ(After({.number = 1, .id = 100}, {.number = 900, .id = 200}), 901U);
}

TEST(Terms, EqualNumbersAreOrderedById) {
  EXPECT_EQ(After({.number = 1, .id = 100}, {.number = 1, .id = 101}), 2U);
  EXPECT_EQ(After({.number = 1, .id = 101}, {.number = 1, .id = 100}), 1U);
}

TEST(Terms, WhatAControllerBeginsIsFollowedByWhoMadeItDoSo) {
  for (const Term& told : {Term{.number = 1, .id = UINT64_MAX}, Term{.number = 5, .id = 3}}) {
    const Term next{.number = After(FirstTerm(1), told), .id = 0};
    EXPECT_LT(told, next);
    EXPECT_EQ(After(next, told), next.number) << "and it stays there";
  }
}

TEST(Terms, ALongJumpIsRefused) {
  const Term own{.number = 10, .id = 1};
  EXPECT_EQ(After(own, {.number = 10 + kMaxTermJump, .id = 1}), 11 + kMaxTermJump);
  for (const uint64_t number : {11 + kMaxTermJump, kMaxTerm}) {
    const Status refused = NumberAfter(own, {.number = number, .id = 1}).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.message(), AllOf(HasSubstr(StrCat("has followed a controller of term ", number)),
                                         HasSubstr("start the worker again")));
  }
}

TEST(Terms, TheLastNumberIsNotPassed) {
  EXPECT_EQ(After({.number = kMaxTerm - 2, .id = 1}, {.number = kMaxTerm - 1, .id = 1}), kMaxTerm);
  EXPECT_EQ(NumberAfter({.number = kMaxTerm, .id = 1}, {.number = kMaxTerm, .id = 2}).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::control
