#include "checkpoint/header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/strings.h"
#include "unit/checkpoint/scratch.h"

namespace weightcast::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string Tensor(std::string_view name, std::string_view dtype, std::string_view shape, int64_t begin,
                   int64_t end) {
  return StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":[", begin,
                ",", end, "]}");
}

TEST(ParseHeader, GivesTensorsInOrderOfTheirDataAndMetadataInOrderOfTheText) {
  const std::string json =
      StrCat("{", Tensor("b", "BF16", "[2,3]", 4, 16), ",\"__metadata__\":{\"z\":\"1\",\"a\":\"2\"},",
             Tensor("a", "F32", "[]", 0, 4), "}   ");
  const auto header = ParseHeader(json, 16);
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].info, (TensorInfo{"a", DType::kF32, {}}));
  EXPECT_EQ(header->tensors[1].info, (TensorInfo{"b", DType::kBF16, {2, 3}}));
  EXPECT_EQ(header->tensors[1].begin, 4);
  EXPECT_EQ(header->tensors[1].end, 16);
  EXPECT_THAT(header->metadata, ElementsAre(Pair("z", "1"), Pair("a", "2")));
  EXPECT_EQ(header->json, json);
  EXPECT_EQ(header->data_bytes, 16);
  EXPECT_EQ(header->file_bytes(), static_cast<int64_t>(8 + json.size() + 16));
}

TEST(ParseHeader, TakesEveryDTypeOfTheFormat) {
  const std::vector<std::pair<std::string, int>> kBitsByName = {
      {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
      {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
      {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}};
  EXPECT_EQ(kBitsByName.size(), static_cast<size_t>(kDTypeCount));
  for (const auto& [name, bits] : kBitsByName) {
    const auto header =
        ParseHeader(StrCat("{", Tensor("x", name, "[3,4]", 0, 12 * bits / 8), "}"), 12 * bits / 8);
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    EXPECT_EQ(NameOf(header->tensors[0].info.dtype), name);
  }
}

TEST(ParseHeader, TakesEmptyTensorsAndEmptyFiles) {
  EXPECT_TRUE(ParseHeader("{}", 0).ok());
  EXPECT_TRUE(ParseHeader("{\"__metadata__\":null}", 0).ok());
  const auto header =
      ParseHeader(StrCat("{", Tensor("full", "U8", "[2]", 0, 2), ",", Tensor("end", "F32", "[0,5]", 2, 2),
                         ",", Tensor("start", "F32", "[0]", 0, 0), "}"),
                  2);
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ(header->tensors[0].info.name, "start");
  EXPECT_EQ(header->tensors[2].info.name, "end");
}

struct BadHeader {
  const char* name;
  std::string json;
  int64_t data_bytes;
  const char* reason;
};

class ParseBadHeader : public testing::TestWithParam<BadHeader> {};

TEST_P(ParseBadHeader, IsRefusedWithTheReason) {
  const auto header = ParseHeader(GetParam().json, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), Code::kCorrupt);
  EXPECT_THAT(header.status().message(), HasSubstr(GetParam().reason));
  EXPECT_LT(header.status().message().size(), 400u);
}

const std::string kBig = std::to_string(std::numeric_limits<int64_t>::max());

INSTANTIATE_TEST_SUITE_P(
    Form, ParseBadHeader,
    testing::Values(
        BadHeader{"Empty", "", 0, "does not begin with '{'"},
        BadHeader{"Space", " {}", 0, "does not begin with '{'"},
        BadHeader{"Array", "[]", 0, "does not begin with '{'"},
        BadHeader{"Cut", "{\"a\":", 0, "not valid JSON at byte 6"},
        BadHeader{"Twice", "{}{}", 0, "not valid JSON at byte 3"},
        BadHeader{"Nul", std::string("{}\0x", 4), 0, "not valid JSON at byte 2"},
        BadHeader{"BadUtf8", "{\"\xFF\":{}}", 0, "not valid JSON"},
        BadHeader{"NoObject", "{\"a\":3}", 0, "member \"a\" is a number"},
        BadHeader{"Null", "{\"a\":null}", 0, "member \"a\" is null"},
        BadHeader{"Nested", "{\"a\":{\"shape\":[[1]]}}", 0, "tensor \"a\": shape is an array"},
        BadHeader{"ObjectInTensor", "{\"a\":{\"dtype\":{}}}", 0, "dtype is an object"},
        BadHeader{"Unknown", "{\"a\":{\"stride\":1}}", 0, "unknown member \"stride\""},
        BadHeader{"NoDType", R"({"a":{"shape":[],"data_offsets":[0,4]}})", 4, "tensor \"a\" lacks dtype"},
        BadHeader{"NoShape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "lacks shape"},
        BadHeader{"NoOffsets", R"({"a":{"dtype":"F32","shape":[]}})", 4, "lacks data_offsets"},
        BadHeader{"ShapeTwice", R"({"a":{"shape":[],"shape":[]}})", 4, "shape is given twice"},
        BadHeader{"UnknownDType", R"({"a":{"dtype":"F128","shape":[],"data_offsets":[0,16]}})", 16,
                  "tensor \"a\": dtype: unknown dtype \"F128\""},
        BadHeader{"NumberAsDType", R"({"a":{"dtype":5}})", 0, "dtype is a number"},
        BadHeader{"Negative", R"({"a":{"shape":[-1]}})", 0, "shape is a negative number"},
        BadHeader{"Fraction", R"({"a":{"shape":[1.5]}})", 0,
                  "shape is a number that is not a 64-bit integer"},
        BadHeader{"Huge", R"({"a":{"shape":[18446744073709551616]}})", 0, "not a 64-bit integer"},
        BadHeader{"TooLarge", R"({"a":{"shape":[9223372036854775808]}})", 0, "out of range"},
        BadHeader{"OneOffset", R"({"a":{"data_offsets":[0]}})", 0, "data_offsets is not a pair"},
        BadHeader{"ThreeOffsets", R"({"a":{"data_offsets":[0,1,2]}})", 0, "data_offsets is not a pair"},
        BadHeader{"ManyDimensions", R"({"a":{"shape":[1,1,1,1,1,1,1,1,1]}})", 0, "more than 8 dimensions"},
        BadHeader{"MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "__metadata__ \"a\" is a number"},
        BadHeader{"MetadataNested", R"({"__metadata__":{"a":{}}})", 0, "__metadata__ \"a\" is an object"},
        BadHeader{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0,
                  "\"__metadata__\" is given twice"},
        BadHeader{"MetadataKeyTwice", R"({"__metadata__":{"a":"1","a":"2"}})", 0,
                  "key \"a\" is given twice"}),
    [](const auto& bad) { return bad.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Meaning, ParseBadHeader,
    testing::Values(
        BadHeader{"Truncated", StrCat("{", Tensor("a", "F32", "[4]", 0, 16), "}"), 10,
                  "truncated: the header describes 16 bytes of data, but the file has 10"},
        BadHeader{"Trailing", StrCat("{", Tensor("a", "F32", "[4]", 0, 16), "}"), 17, "describes only 16"},
        BadHeader{"EmptyWithData", "{}", 1, "describes only 0"},
        BadHeader{"SizeTooSmall", StrCat("{", Tensor("a", "F32", "[4]", 0, 12), "}"), 12,
                  "tensor \"a\": F32 [4] takes 16 bytes, but its data_offsets are 0 to 12"},
        BadHeader{"Backwards", StrCat("{", Tensor("a", "U8", "[4]", 4, 0), "}"), 4,
                  "data_offsets are 4 to 0"},
        BadHeader{"Hole",
                  StrCat("{", Tensor("a", "U8", "[4]", 0, 4), ",", Tensor("b", "U8", "[4]", 8, 12), "}"), 12,
                  "data bytes 4 to 8, before tensor \"b\", belong to no tensor"},
        BadHeader{"HoleAtStart", StrCat("{", Tensor("a", "U8", "[4]", 1, 5), "}"), 5, "data bytes 0 to 1"},
        BadHeader{"Overlap",
                  StrCat("{", Tensor("a", "U8", "[4]", 0, 4), ",", Tensor("b", "U8", "[4]", 2, 6), "}"), 6,
                  "tensors \"a\" and \"b\" overlap at data byte 2"},
        BadHeader{"Same",
                  StrCat("{", Tensor("a", "U8", "[4]", 0, 4), ",", Tensor("b", "U8", "[4]", 0, 4), "}"), 4,
                  "overlap"},
        BadHeader{"NameTwice",
                  StrCat("{", Tensor("a", "U8", "[4]", 0, 4), ",", Tensor("a", "U8", "[4]", 4, 8), "}"), 8,
                  "tensor \"a\" is given twice"},
        BadHeader{"HalfByte", StrCat("{", Tensor("a", "F4", "[3]", 0, 2), "}"), 2,
                  "does not fill whole bytes"},
        BadHeader{"Overflow", StrCat("{", Tensor("a", "U8", StrCat("[", kBig, ",", kBig, "]"), 0, 1), "}"), 1,
                  "beyond 1 PiB"},
        BadHeader{"OverflowToZero", StrCat("{", Tensor("a", "U8", "[4294967296,4294967296]", 0, 0), "}"), 0,
                  "beyond 1 PiB"},
        BadHeader{"OffsetsOverflow",
                  StrCat("{", Tensor("a", "U8", "[1]", 0, 1), ",",
                         Tensor("b", "U8", "[1]", 9223372036854775806, 9223372036854775807), "}"),
                  1, "belong to no tensor"},
        BadHeader{"ControlCharacter", StrCat("{", Tensor("a\\u0007", "U8", "[1]", 0, 1), "}"), 1, "control"}),
    [](const auto& bad) { return bad.param.name; });

TEST(ParseHeader, ShowsLongAndStrangeNamesShort) {
  const std::string name(100'000, 'x');
  const auto header = ParseHeader(StrCat("{\"", name, "\":{\"dtype\":\"", name, "\"}}"), 0);
  ASSERT_FALSE(header.ok());
  EXPECT_LT(header.status().message().size(), 400u);
  EXPECT_EQ(Shown("a\n\x1b[31m\xff"), "\"a\\n\\u001b[31m\\ufffd\"");
}

TEST(ParseHeaderLength, ChecksAgainstLimitAndFile) {
  const auto first = [](uint64_t length) {
    return FileOf("", "").replace(0, 8, reinterpret_cast<const char*>(&length), 8);
  };
  EXPECT_EQ(ParseHeaderLength(BytesOf(first(100)), 108).value(), 100);
  EXPECT_THAT(ParseHeaderLength(BytesOf(first(101)), 108).status().message(),
              HasSubstr("truncated: the header should have 101 bytes, but the file has 100"));
  EXPECT_TRUE(ParseHeaderLength(BytesOf(first(100'000'000)), int64_t{1} << 40).ok());
  EXPECT_THAT(ParseHeaderLength(BytesOf(first(100'000'001)), int64_t{1} << 40).status().message(),
              HasSubstr("not a safetensors file"));
  EXPECT_FALSE(ParseHeaderLength(BytesOf(first(~uint64_t{0})), std::numeric_limits<int64_t>::max()).ok());
  EXPECT_THAT(ParseHeaderLength(BytesOf("1234567"), 7).status().message(), HasSubstr("7 bytes are too few"));
}

TEST(MakeHeader, WritesWhatTheReferenceWriterWrites) {
  // safetensors 0.8.0: save({"b": zeros((2, 3), float16), "a": zeros(2, float32), "é\"": zeros((), float32)},
  // {"format": "pt"})
  const std::string expected =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("é\"":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F16","shape":[2,3],"data_offsets":[12,24]}})";
  const auto tensors =
      ReferenceOrder({{"b", DType::kF16, {2, 3}}, {"a", DType::kF32, {2}}, {"é\"", DType::kF32, {}}});
  const auto header = MakeHeader(tensors, {{"format", "pt"}});
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  EXPECT_EQ(header->json.size() % 8, 0u);
  EXPECT_EQ(header->json.substr(0, expected.size()), expected);
  EXPECT_EQ(header->json.find_first_not_of(' ', expected.size()), std::string::npos);
  EXPECT_EQ(header->data_bytes, 24);
  EXPECT_TRUE(ParseHeader(header->json, 24).ok());
}

TEST(MakeHeader, RefusesWhatNoFileMayHold) {
  const auto message = [](std::vector<TensorInfo> tensors, const Metadata& metadata) {
    const auto header = MakeHeader(tensors, metadata);
    EXPECT_EQ(header.status().code(), Code::kInvalidArgument);
    return header.status().message();
  };
  EXPECT_THAT(message({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}, {}), HasSubstr("is given twice"));
  EXPECT_THAT(message({{"a", DType::kF4, {1}}}, {}), HasSubstr("whole bytes"));
  EXPECT_THAT(message({{"\xff", DType::kU8, {1}}}, {}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({}, {{"k", "\xc3"}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(message({}, {{"k", "1"}, {"k", "2"}}), HasSubstr("is given twice"));
  EXPECT_THAT(message({{"__metadata__", DType::kU8, {1}}}, {}), HasSubstr("__metadata__"));
}

}  // namespace
}  // namespace weightcast::checkpoint
