#include "base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace weightcast {
namespace {

using ::testing::HasSubstr;

TEST(CheckDescriptors, SaysTheLimitBeforeItIsMet) {
  EXPECT_TRUE(CheckDescriptors(8).ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 16, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const Status refused = CheckDescriptors(32);
  const Status granted = CheckDescriptors(1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refused.code(), Code::kExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("limit of open files (ulimit -n), which is 16"));
  EXPECT_TRUE(granted.ok()) << granted.ToString();
}

}  // namespace
}  // namespace weightcast
