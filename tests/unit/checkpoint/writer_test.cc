#include "checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/version_folder.h"
#include "unit/checkpoint/scratch.h"

namespace weightcast::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Header SmallHeader() {
  return MakeHeader(std::vector<TensorInfo>{{"a", DType::kF32, {2}}, {"b", DType::kU8, {3}}},
                    {{"format", "pt"}})
      .value();
}

TEST(SafetensorsWriter, ACopyEqualsItsOriginalByteForByte) {
  // Order, spaces, escapes, metadata and padding as no writer of ours would make them.
  const std::string original = FileOf(
      "{ \"\\u0062\" : "
      "{\"data_offsets\":[8,11],\"shape\":[3],\"dtype\":\"U8\"},\t\"__metadata__\":{\"z\":\"\",\"a\":\"\\/"
      "\"},"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[ 2 ],\"data_offsets\":[0,8]}}\n ",
      "ABCDEFGHxyz");
  const Scratch scratch;
  WriteText(scratch / "original", original);
  const auto file = SafetensorsFile::Open(scratch / "original");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  // The header goes its own way, as it would over the network.
  const auto header = ParseHeader(file->header().json, std::nullopt);
  ASSERT_TRUE(header.ok());
  const std::string first = ReadTensor(*file, 0, 8);
  const std::string second = ReadTensor(*file, 1, 3);
  const std::vector<std::span<const std::byte>> data = {BytesOf(first), BytesOf(second)};
  ASSERT_TRUE(WriteSafetensors(scratch / "copy", *header, data).ok());
  EXPECT_EQ(ReadText(scratch / "copy"), original);
}

TEST(SafetensorsWriter, TakesDataInPiecesOfAnySize) {
  const Scratch scratch;
  auto writer = SafetensorsWriter::Create(scratch / "m", SmallHeader(), {.sync = false});
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  EXPECT_FALSE(std::filesystem::exists(scratch / "m"));
  for (const std::string_view piece : {"A", "BCDEFGHx", "", "yz"})
    ASSERT_TRUE(writer->Append(BytesOf(piece)).ok());
  EXPECT_EQ(writer->Append(BytesOf("!")).code(), Code::kOutOfBounds);
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_THAT(Everything(scratch.path()), ElementsAre("m"));
  const auto file = SafetensorsFile::Open(scratch / "m");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(ReadTensor(*file, 0, 8) + ReadTensor(*file, 1, 3), "ABCDEFGHxyz");
}

TEST(SafetensorsWriter, LeavesNoTraceUnlessFinished) {
  const Scratch scratch;
  WriteText(scratch / "m", "older");
  {
    auto writer = SafetensorsWriter::Create(scratch / "m", SmallHeader());
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->Append(BytesOf("ABCD")).ok());
    const Status status = writer->Finish();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("7 bytes of its data are missing"));
  }
  EXPECT_THAT(Everything(scratch.path()), ElementsAre("m"));
  EXPECT_EQ(ReadText(scratch / "m"), "older");
}

TEST(SafetensorsWriter, ReplacesAnOlderFileWhole) {
  const Scratch scratch;
  const std::vector<std::span<const std::byte>> older = {BytesOf("ABCDEFGH"), BytesOf("xyz")};
  const std::vector<std::span<const std::byte>> newer = {BytesOf("12345678"), BytesOf("---")};
  ASSERT_TRUE(WriteSafetensors(scratch / "m", SmallHeader(), older).ok());
  const auto open = SafetensorsFile::Open(scratch / "m");
  ASSERT_TRUE(WriteSafetensors(scratch / "m", SmallHeader(), newer).ok());
  EXPECT_EQ(ReadTensor(*open, 0, 8) + ReadTensor(*open, 1, 3), "ABCDEFGHxyz");
  const auto replaced = SafetensorsFile::Open(scratch / "m");
  EXPECT_EQ(ReadTensor(*replaced, 0, 8) + ReadTensor(*replaced, 1, 3), "12345678---");
}

TEST(SafetensorsWriter, SaysWhatIsWrong) {
  const Scratch scratch;
  const auto header = SmallHeader();
  const std::vector<std::span<const std::byte>> short_data = {BytesOf("ABCDEFGH"), BytesOf("xy")};
  EXPECT_THAT(WriteSafetensors(scratch / "m", header, short_data).message(),
              HasSubstr("tensor \"b\" has 3 bytes, but 2 were given"));
  EXPECT_THAT(WriteSafetensors(scratch / "m", header, std::span(short_data).first(1)).message(),
              HasSubstr("data of 1 tensors"));
  const auto lost = SafetensorsWriter::Create(scratch / "none" / "m", header);
  EXPECT_EQ(lost.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(lost.status().message(), HasSubstr((scratch / "none").native()));
  EXPECT_FALSE(SafetensorsWriter::Create(scratch.path() / "", header).ok());
  EXPECT_THAT(Everything(scratch.path()), IsEmpty());
}

// A file system of one megabyte, in a mount namespace of this process, so that nothing stays behind.
class SmallDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", scratch_.path().c_str(), "tmpfs", 0, "size=1m") != 0)
      GTEST_SKIP() << "NOT TESTED: a full disk, since mounting a tmpfs is not permitted here: "
                   << std::strerror(errno);
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) umount2(scratch_.path().c_str(), MNT_DETACH);
  }
  Scratch scratch_;
  bool mounted_ = false;
};

Header LargeHeader() {
  return MakeHeader(std::vector<TensorInfo>{{"w", DType::kU8, {1200, 1000}}}, {}).value();
}

TEST_F(SmallDisk, FullDiskIsExhaustedAndLeavesNothing) {
  const auto writer = SafetensorsWriter::Create(scratch_ / "m", LargeHeader());
  EXPECT_EQ(writer.status().code(), Code::kExhausted);
  EXPECT_THAT(writer.status().message(), HasSubstr((scratch_ / "m").native()));
  EXPECT_THAT(writer.status().message(), HasSubstr("free some space"));
  EXPECT_THAT(Everything(scratch_.path()), IsEmpty());
}

TEST_F(SmallDisk, FullDiskLeavesNoVersionFolder) {
  {
    auto folder = VersionFolder::Begin({.output = scratch_.path(), .engine = "e"}, "1", "x");
    ASSERT_TRUE(folder.ok()) << folder.status().ToString();
    EXPECT_EQ(SafetensorsWriter::Create(folder->file(), LargeHeader()).status().code(), Code::kExhausted);
  }
  EXPECT_THAT(Everything(scratch_.path()), ElementsAre("e"));
}

TEST_F(SmallDisk, AFileThatFitsIsWritten) {
  const auto header = MakeHeader(std::vector<TensorInfo>{{"w", DType::kU8, {900, 1000}}}, {}).value();
  const std::string data(900'000, 'w');
  const std::vector<std::span<const std::byte>> spans = {BytesOf(data)};
  ASSERT_TRUE(WriteSafetensors(scratch_ / "m", header, spans).ok());
  EXPECT_EQ(WriteSafetensors(scratch_ / "n", header, spans).code(), Code::kExhausted);
  EXPECT_THAT(Everything(scratch_.path()), ElementsAre("m"));
}

}  // namespace
}  // namespace weightcast::checkpoint
