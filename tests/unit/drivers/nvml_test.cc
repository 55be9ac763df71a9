#include "drivers/nvml/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "drivers/nvml/load.h"

namespace weightcast::drivers {
namespace {

using ::testing::HasSubstr;

TEST(Nvml, CountsTheBytesOfAllLinks) {
  const auto nvml = LoadNvmlFrom(FAKE_NVML_LIBRARY);
  ASSERT_TRUE(nvml.ok()) << nvml.status().ToString();
  EXPECT_EQ(*(*nvml)->Gpus(), 2U);
  const auto bytes = (*nvml)->NvlinkOf(0);
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  EXPECT_EQ(bytes->sent, 3U * 1024);
  EXPECT_EQ(bytes->received, 5U * 1024);
}

TEST(Nvml, AGpuWithoutNvlinkIsAnError) {
  const auto nvml = LoadNvmlFrom(FAKE_NVML_LIBRARY);
  ASSERT_TRUE(nvml.ok()) << nvml.status().ToString();
  EXPECT_THAT((*nvml)->NvlinkOf(1).status().message(),
              HasSubstr("NVLink's counters: Not Supported; this GPU or its driver counts none, and nothing "
                        "needs to be done"));
  EXPECT_EQ((*nvml)->NvlinkOf(2).status().code(), Code::kUnavailable);
}

TEST(Nvml, WithoutTheLibraryTheRemedyIsNamed) {
  const auto nvml = LoadNvmlFrom("libno-such-thing.so.1");
  ASSERT_FALSE(nvml.ok());
  EXPECT_EQ(nvml.status().code(), Code::kUnavailable);
  EXPECT_THAT(nvml.status().message(), HasSubstr("nvidia-smi"));
}

TEST(Nvml, AnotherLibraryIsRefused) {
  EXPECT_THAT(LoadNvmlFrom("libc.so.6").status().message(), HasSubstr("too old"));
}

}  // namespace
}  // namespace weightcast::drivers
