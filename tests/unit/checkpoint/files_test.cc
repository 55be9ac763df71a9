#include "checkpoint/files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "unit/checkpoint/scratch.h"

namespace weightcast::checkpoint {
namespace {

using testing::HasSubstr;

TEST(WriteAll, FullDeviceIsExhausted) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  const Status status = WriteAll(full.get(), BytesOf("data"), "/some/file");
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("/some/file"));
}

TEST(FileError, FindsTheCodeThatFits) {
  EXPECT_EQ(FileError("write", "x", ENOSPC).code(), Code::kExhausted);
  EXPECT_EQ(FileError("write", "x", EDQUOT).code(), Code::kExhausted);
  EXPECT_EQ(FileError("open", "x", EMFILE).code(), Code::kExhausted);
  EXPECT_EQ(FileError("open", "x", EACCES).code(), Code::kPermission);
  EXPECT_EQ(FileError("write", "x", EROFS).code(), Code::kPermission);
  EXPECT_EQ(FileError("open", "x", ENOENT).code(), Code::kInvalidArgument);
  EXPECT_EQ(FileError("read", "x", EIO).code(), Code::kUnavailable);
  EXPECT_THAT(FileError("open", "/a/b", ENOENT).message(), HasSubstr("cannot open /a/b: No such file"));
}

TEST(ReadTextFile, HasALimit) {
  const Scratch scratch;
  WriteText(scratch / "text", "12345");
  EXPECT_EQ(ReadTextFile(scratch / "text", 5).value(), "12345");
  EXPECT_EQ(ReadTextFile(scratch / "text", 4).status().code(), Code::kCorrupt);
  EXPECT_EQ(ReadTextFile("/dev/zero", 4).status().code(), Code::kInvalidArgument);
}

TEST(MakeFolders, MakesThoseAboveToo) {
  const Scratch scratch;
  ASSERT_TRUE(MakeFolders(scratch / "a" / "b" / "c", true).ok());
  ASSERT_TRUE(MakeFolders(scratch / "a" / "b" / "c", true).ok());
  EXPECT_TRUE(std::filesystem::is_directory(scratch / "a" / "b" / "c"));
  WriteText(scratch / "file", "");
  EXPECT_FALSE(MakeFolders(scratch / "file" / "below", true).ok());
}

TEST(CheckPlainName, RefusesWhatWouldLeaveTheFolder) {
  for (const char* name : {"80", "2:80", "rollout-3", "a b", "…"})
    EXPECT_TRUE(CheckPlainName("name", name).ok());
  for (const char* name : {"", ".", "..", ".hidden", "a/b", "/", "../x", "a\nb", "a\x7f"})
    EXPECT_EQ(CheckPlainName("engine name", name).code(), Code::kInvalidArgument) << name;
  EXPECT_FALSE(CheckPlainName("name", std::string("a\0b", 3)).ok());
  EXPECT_FALSE(CheckPlainName("name", std::string(101, 'a')).ok());
  EXPECT_THAT(CheckPlainName("engine name", "a/b").message(), HasSubstr("engine name \"a/b\" holds a '/'"));
}

}  // namespace
}  // namespace weightcast::checkpoint
