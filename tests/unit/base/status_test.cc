#include "weightcast/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace weightcast {
namespace {

Result<int> Half(int number) {
  if (number % 2 != 0) return Status(Code::kInvalidArgument, "7 is odd");
  return number / 2;
}

TEST(ResultTest, HoldsAValueOrAReason) {
  EXPECT_EQ(Half(8).value(), 4);
  EXPECT_TRUE(Half(8).status().ok());
  EXPECT_EQ(Half(7).status().ToString(), "invalid argument: 7 is odd");
}

Status Missing() { return {Code::kCorrupt, "there is none"}; }

TEST(ResultTest, IsCopiedWithItsValueOrItsReason) {
  const Result<std::shared_ptr<int>> value = std::make_shared<int>(4);
  const Result<std::shared_ptr<int>> none = Missing();
  Result<std::shared_ptr<int>> other = value;
  EXPECT_EQ(value->use_count(), 2);
  other = none;
  EXPECT_EQ(value->use_count(), 1);
  EXPECT_EQ(other.status(), Missing());
  other = value;
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(value->use_count(), 2);
  other = std::as_const(other);
  EXPECT_EQ(**other, 4);
  EXPECT_EQ(value->use_count(), 2);
}

TEST(ResultTest, HoldsWhatCanOnlyBeMoved) {
  struct Owner {
    explicit Owner(int value) : number(std::make_unique<int>(value)) {}
    std::unique_ptr<int> number;
  };
  Result<Owner> first = Owner(4);
  Result<Owner> second = std::move(first);
  EXPECT_EQ(*second->number, 4);
  first = Missing();
  second = std::move(first);
  EXPECT_EQ(second.status(), Missing());
  second = Owner(7);
  const Owner taken = *std::move(second);
  EXPECT_EQ(*taken.number, 7);
}

// In release builds as well: what else would be read is nobody's value.
TEST(ResultDeathTest, AMissingValueEndsTheProcessWithTheReason) {
  EXPECT_DEATH((void)Half(7).value(), "value\\(\\) of a failed Result: invalid argument: 7 is odd");
  EXPECT_DEATH((void)*Half(7), "7 is odd");
  EXPECT_DEATH((void)Result<int>(Status()), "without a value or an error");
}

}  // namespace
}  // namespace weightcast
