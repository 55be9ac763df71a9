#include "worker/table_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/strings.h"

namespace weightcast::worker {
namespace {

using ::testing::HasSubstr;
using Role = plan::RankTable::Role;

class TableFile : public ::testing::Test {
 protected:
  TableFile() { std::filesystem::create_directories(folder_); }
  ~TableFile() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] Status Load(const std::string& file) const {
    protocol::Plan plan;
    plan.table_file = file;
    return LoadTable(plan, folder_, Role::kInference).status();
  }
  const std::string folder_ = StrCat(::testing::TempDir(), "table_file_", ::getpid());
};

TEST_F(TableFile, AFifoIsRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  const Status status = Load("fifo");
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("not a routing table"));
}

TEST_F(TableFile, OnlyFilesOfTheFolderAreRead) {
  std::filesystem::create_symlink("/dev/zero", folder_ + "/link");
  for (const char* file : {"/dev/zero", "../table", "a/../../table"}) {
    const Status status = Load(file);
    EXPECT_EQ(status.code(), Code::kProtocol) << file;
    EXPECT_THAT(status.message(), HasSubstr(StrCat("not in the folder ", folder_)));
  }
  EXPECT_EQ(Load("link").code(), Code::kUnavailable);
  EXPECT_EQ(Load("absent").code(), Code::kUnavailable);
}

TEST_F(TableFile, WithoutTheFolderTheSettingIsNamed) {
  protocol::Plan plan;
  plan.table_file = "default/policy/table";
  EXPECT_THAT(LoadTable(plan, "", Role::kInference).status().message(),
              HasSubstr("the setting tables of the controller"));
}

}  // namespace
}  // namespace weightcast::worker
