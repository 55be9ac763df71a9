#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/strings.h"
#include "unit/checkpoint/scratch.h"

namespace weightcast::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A file with tensors of two bytes each, whose bytes are the tensor's name twice.
std::string FileWith(std::string_view names) {
  std::string json = "{";
  std::string data;
  for (const char name : names) {
    json += StrCat(json.size() == 1 ? "" : ",", "\"", name,
                   "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[", data.size(), ",", data.size() + 2,
                   "]}");
    data.append(2, name);
  }
  return FileOf(json + "}", data);
}

std::string Index(std::string_view map) {
  return StrCat(R"({"metadata":{"total_size":6,"deep":[[{"x":null}],true,-1,1.5]},"weight_map":{)", map,
                "}}");
}

TEST(Checkpoint, OpensAFileOrAFolderWithOne) {
  const Scratch scratch;
  WriteText(scratch / "other.safetensors", FileWith("ab"));
  WriteText(scratch / ".hidden.safetensors", FileWith("x"));
  WriteText(scratch / "config.json", "{}");
  for (const auto& path : {scratch / "other.safetensors", scratch.path()}) {
    const auto checkpoint = Checkpoint::Open(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    ASSERT_EQ(checkpoint->tensors().size(), 2u);
    EXPECT_EQ(checkpoint->Find("b"), 1u);
    EXPECT_EQ(checkpoint->Find("c"), std::nullopt);
    EXPECT_EQ(ReadTensor(*checkpoint, 1, 2), "bb");
    EXPECT_EQ(checkpoint->data_bytes(), 4);
    ASSERT_NE(checkpoint->single_header(), nullptr);
    EXPECT_TRUE(checkpoint->CheckUnchanged().ok());
  }
  WriteText(scratch / "model.safetensors", FileWith("c"));
  EXPECT_TRUE(Checkpoint::Open(scratch.path())->Find("c").has_value())
      << "model.safetensors goes before others";
}

TEST(Checkpoint, OpensAnIndexOfSeveralFiles) {
  const Scratch scratch;
  WriteText(scratch / "model-00001-of-00002.safetensors", FileWith("zb"));
  WriteText(scratch / "model-00002-of-00002.safetensors", FileWith("a"));
  WriteText(scratch / "model.safetensors.index.json",
            Index(R"("a":"model-00002-of-00002.safetensors","b":"model-00001-of-00002.safetensors",)"
                  R"("z":"model-00001-of-00002.safetensors")"));
  const auto checkpoint = Checkpoint::Open(scratch.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  ASSERT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "z");
  EXPECT_EQ(checkpoint->Find("a"), 2u);
  EXPECT_EQ(ReadTensor(*checkpoint, 2, 2), "aa");
  EXPECT_EQ(checkpoint->single_header(), nullptr);
  EXPECT_EQ(checkpoint->files().size(), 2u);
  std::vector<std::byte> byte(1);
  ASSERT_TRUE(checkpoint->Read(1, 1, byte).ok());
  EXPECT_EQ(TextOf(byte), "b");
}

TEST(Checkpoint, RefusesBadIndexes) {
  const Scratch scratch;
  WriteText(scratch / "one.safetensors", FileWith("ab"));
  WriteText(scratch / "two.safetensors", FileWith("c"));
  const auto why = [&](std::string_view json) {
    WriteText(scratch / "model.safetensors.index.json", json);
    const auto checkpoint = Checkpoint::Open(scratch.path());
    EXPECT_FALSE(checkpoint.ok()) << json;
    return checkpoint.status().message();
  };
  EXPECT_THAT(why(Index(R"("a":"one.safetensors","b":"one.safetensors","c":"three.safetensors")")),
              AllOf(HasSubstr("three.safetensors is missing"), HasSubstr("\"c\"")));
  EXPECT_THAT(why(Index(R"("a":"one.safetensors","b":"one.safetensors","d":"one.safetensors")")),
              HasSubstr("tensor \"d\" is not in this file"));
  EXPECT_THAT(why(Index(R"("a":"one.safetensors")")),
              HasSubstr("tensor \"b\" is in this file, but is not listed for it in"));
  EXPECT_THAT(why(Index(R"("a":"x/../one.safetensors")")), HasSubstr("holds a '/'"));
  EXPECT_THAT(why(Index(R"("a":"/etc/passwd")")), HasSubstr("holds a '/'"));
  EXPECT_THAT(why(Index(R"("a":"..")")), HasSubstr("begins with '.'"));
  EXPECT_THAT(why(Index(R"("a":"")")), HasSubstr("is empty"));
  EXPECT_THAT(why(Index(R"("a":"one.safetensors\u0000x")")), HasSubstr("control character"));
  EXPECT_THAT(why(Index(R"("a":"one.safetensors","a":"two.safetensors")")), HasSubstr("is listed twice"));
  EXPECT_THAT(why(Index("")), HasSubstr("names no tensor"));
  EXPECT_THAT(why(Index(R"("a":1)")), HasSubstr("weight_map, tensor \"a\" is a number"));
  EXPECT_THAT(why(Index(R"("a":{"b":"c"})")), HasSubstr("is an object"));
  EXPECT_THAT(why(R"({"weight_map":[]})"), HasSubstr("weight_map is an array"));
  EXPECT_THAT(why(R"({"weight_map":null})"), HasSubstr("weight_map is null"));
  EXPECT_THAT(why(R"({"metadata":{"weight_map":{}}})"), HasSubstr("has no weight_map"));
  EXPECT_THAT(why(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("is given twice"));
  EXPECT_THAT(why(R"({"weight_map":{"a":"one)"), HasSubstr("not valid JSON"));
  EXPECT_THAT(why(std::string(1'000'000, '[')), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(why("{\"x\":" + std::string(1'000'000, '[')), HasSubstr("not valid JSON"));
}

TEST(Checkpoint, SaysWhatIsMissing) {
  const Scratch scratch;
  EXPECT_THAT(Checkpoint::Open(scratch / "none").status().message(), HasSubstr("there is no such path"));
  EXPECT_THAT(Checkpoint::Open(scratch.path()).status().message(),
              HasSubstr("neither model.safetensors nor model.safetensors.index.json, and 0 other"));
  WriteText(scratch / "a.safetensors", FileWith("a"));
  WriteText(scratch / "b.safetensors", FileWith("b"));
  EXPECT_THAT(Checkpoint::Open(scratch.path()).status().message(),
              HasSubstr("and 2 other .safetensors files"));
  WriteText(scratch / "model.safetensors", "nonsense here");
  EXPECT_EQ(Checkpoint::Open(scratch.path()).status().code(), Code::kCorrupt);
}

TEST(Checkpoint, ReadsBoxes) {
  // Rows so long that the window of small reads moves several times, and runs larger than it.
  constexpr int64_t kRows = 7;
  constexpr int64_t kColumns = 200'000;
  std::string data(2 * kRows * kColumns, '\0');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761u >> 13);
  const Scratch scratch;
  WriteText(scratch / "m.safetensors", FileOf(StrCat("{\"w\":{\"dtype\":\"I16\",\"shape\":[", kRows, ",",
                                                     kColumns, "],\"data_offsets\":[0,", data.size(), "]}}"),
                                              data));
  const auto checkpoint = Checkpoint::Open(scratch / "m.safetensors");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  for (const Box& box : {Box{{0, 0}, {kRows, kColumns}}, Box{{2, 0}, {3, kColumns}}, Box{{0, 5}, {kRows, 3}},
                         Box{{1, 1000}, {6, 150'000}}, Box{{6, kColumns - 1}, {1, 1}}, Box{{3, 3}, {0, 0}}}) {
    std::string expected;
    for (int64_t row = box.offset[0]; row < box.offset[0] + box.size[0]; ++row)
      expected += data.substr(2 * (row * kColumns + box.offset[1]), 2 * box.size[1]);
    std::vector<std::byte> bytes(expected.size());
    ASSERT_TRUE(checkpoint->ReadBox(0, box, bytes).ok()) << ToString(box);
    EXPECT_TRUE(TextOf(bytes) == expected) << ToString(box);
  }
  std::vector<std::byte> bytes(2);
  EXPECT_FALSE(checkpoint->ReadBox(0, {{kRows, 0}, {1, 1}}, bytes).ok());
  EXPECT_FALSE(checkpoint->ReadBox(0, {{0, 0}, {1, 2}}, bytes).ok());
  EXPECT_FALSE(checkpoint->ReadBox(0, {{0}, {1}}, bytes).ok());
}

}  // namespace
}  // namespace weightcast::checkpoint
