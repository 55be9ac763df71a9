#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "unit/checkpoint/scratch.h"

namespace weightcast::checkpoint {
namespace {

using testing::HasSubstr;

constexpr const char* kJson =
    R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"a":{"dtype":"U8","shape":[2,2],"data_offsets":[3,7]}})";

TEST(SafetensorsFile, GivesTheBytesOfEachTensor) {
  const Scratch scratch;
  WriteText(scratch / "m.safetensors", FileOf(kJson, "xyzabcd"));
  auto opened = SafetensorsFile::Open(scratch / "m.safetensors");
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const SafetensorsFile file = std::move(*opened);
  EXPECT_EQ(file.header().tensors[0].info.name, "b");
  EXPECT_EQ(ReadTensor(file, 0, 3), "xyz");
  EXPECT_EQ(ReadTensor(file, 1, 4), "abcd");

  std::vector<std::byte> part(2);
  ASSERT_TRUE(file.Read(1, 1, part).ok());
  EXPECT_EQ(TextOf(part), "bc");
  EXPECT_TRUE(file.Read(1, 4, {}).ok());
  EXPECT_EQ(file.Read(1, 3, part).code(), Code::kOutOfBounds);
  EXPECT_EQ(file.Read(1, ~uint64_t{0}, part).code(), Code::kOutOfBounds);
}

TEST(SafetensorsFile, TellsThatItIsTruncatedWhereverItIsCut) {
  const Scratch scratch;
  const std::string whole = FileOf(kJson, "xyzabcd");
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteText(scratch / "m.safetensors", std::string_view(whole).substr(0, size));
    const auto file = SafetensorsFile::Open(scratch / "m.safetensors");
    ASSERT_EQ(file.status().code(), Code::kCorrupt) << size;
    EXPECT_THAT(file.status().message(), HasSubstr("truncated"));
    EXPECT_THAT(file.status().message(), HasSubstr((scratch / "m.safetensors").native()));
  }
}

TEST(SafetensorsFile, RefusesWhatIsNoFile) {
  const Scratch scratch;
  EXPECT_EQ(SafetensorsFile::Open(scratch / "none").status().code(), Code::kInvalidArgument);
  EXPECT_THAT(SafetensorsFile::Open(scratch.path()).status().message(), HasSubstr("not a regular file"));
  EXPECT_THAT(SafetensorsFile::Open("/dev/null").status().message(), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(scratch / "pipe").status().message(), HasSubstr("not a regular file"));
  WriteText(scratch / "text", "version https://git-lfs.github.com/spec/v1");
  EXPECT_THAT(SafetensorsFile::Open(scratch / "text").status().message(),
              HasSubstr("not a safetensors file"));
}

TEST(SafetensorsFile, FindsThatTheFileWasChanged) {
  const Scratch scratch;
  const auto path = scratch / "m.safetensors";
  WriteText(path, FileOf(kJson, "xyzabcd"));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->CheckUnchanged().ok());

  const timespec times[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_THAT(file->CheckUnchanged().message(),
              HasSubstr("was changed in place while in use: it was written to; write"));

  std::filesystem::resize_file(path, 20);
  EXPECT_EQ(file->CheckUnchanged().code(), Code::kCorrupt);
  std::vector<std::byte> bytes(4);
  const Status status = file->Read(1, 0, bytes);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("was changed in place while in use: it had"));
}

TEST(SafetensorsFile, SurvivesTheReplacementOfItsFileByRename) {
  const Scratch scratch;
  const auto path = scratch / "m.safetensors";
  WriteText(path, FileOf(kJson, "xyzabcd"));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  WriteText(scratch / "new", FileOf("{}", ""));
  std::filesystem::rename(scratch / "new", path);
  EXPECT_EQ(ReadTensor(*file, 1, 4), "abcd");
  EXPECT_TRUE(file->CheckUnchanged().ok());
}

TEST(SafetensorsFile, FindsAByteThatWasRewrittenWithTheOldTimePutBack) {
  const Scratch scratch;
  const auto path = scratch / "m.safetensors";
  WriteText(path, FileOf(kJson, "xyzabcd"));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());
  struct stat before{};
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, "q", 1, before.st_size - 1), 1);
  close(fd);
  EXPECT_EQ(file->CheckUnchanged().code(), Code::kCorrupt)
      << "a write at once is in a later tick of the clock";
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ(file->CheckUnchanged().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace weightcast::checkpoint
