#include "weightcast/status.h"

#include <gtest/gtest.h>

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

// In release builds as well: what else would be read is nobody's value.
TEST(ResultDeathTest, AMissingValueEndsTheProcessWithTheReason) {
  EXPECT_DEATH((void)Half(7).value(), "value\\(\\) of a failed Result: invalid argument: 7 is odd");
  EXPECT_DEATH((void)*Half(7), "7 is odd");
  EXPECT_DEATH((void)Result<int>(Status()), "without a value or an error");
}

}  // namespace
}  // namespace weightcast
