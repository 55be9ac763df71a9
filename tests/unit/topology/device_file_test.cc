#include "topology/device_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace weightcast::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ReasonNotOpened, NamesTheFileThatIsMissing) {
  ibv_device device{};
  std::snprintf(device.dev_name, sizeof device.dev_name, "uverbs-of-nobody");
  EXPECT_THAT(
      ReasonNotOpened(device, ENOENT),
      AllOf(HasSubstr("No such file"), HasSubstr("give this process /dev/infiniband/uverbs-of-nobody")));
}

TEST(ReasonNotOpened, HasTheErrorWhereTheFileCanBeOpened) {
  ibv_device device{};
  std::snprintf(device.dev_name, sizeof device.dev_name, "null");
  EXPECT_EQ(ReasonNotOpened(device, ENOMEM, "/dev"),
            "cannot be opened: Cannot allocate memory (12); check its driver with ibv_devinfo and dmesg");
}

TEST(ReasonNotOpened, KnowsAFileOfSomebodyElse) {
  if (geteuid() == 0) GTEST_SKIP() << "root may open everything";
  ibv_device device{};
  std::snprintf(device.dev_name, sizeof device.dev_name, "shadow");
  EXPECT_THAT(ReasonNotOpened(device, ENOENT, "/etc"),
              HasSubstr("this user may not read and write /etc/shadow"));
}

}  // namespace
}  // namespace weightcast::topology
