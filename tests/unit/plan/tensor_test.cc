#include "weightcast/tensor.h"

#include <gtest/gtest.h>

#include "plan/box.h"

namespace weightcast::plan {
namespace {

TEST(DTypeTest, NamesAreThoseOfSafetensorsAndComeBack) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_FALSE(NameOf(dtype).empty());
    EXPECT_EQ(DTypeFromName(NameOf(dtype)), dtype);
  }
  EXPECT_EQ(NameOf(DType::kBF16), "BF16");
  EXPECT_EQ(NameOf(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(NameOf(DType::kF6E2M3), "F6_E2M3");
  EXPECT_EQ(NameOf(DType::kU64), "U64");
  EXPECT_EQ(DTypeFromName("bf16"), std::nullopt);
}

TEST(DTypeTest, BytesOfSubByteTypesAreRoundedUp) {
  EXPECT_EQ(BytesOf(DType::kBF16, 3), 6);
  EXPECT_EQ(BytesOf(DType::kF4, 3), 2);
  EXPECT_EQ(BytesOf(DType::kF6E3M2, 4), 3);
  EXPECT_EQ(BytesOf(DType::kC64, 2), 16);
  EXPECT_EQ(BytesOf(DType::kBool, 0), 0);
}

TEST(ShapeTest, ReadsWell) {
  EXPECT_EQ(ToString(Shape{768, 2304}), "[768, 2304]");
  EXPECT_EQ(ToString(Box{{0, 5}, {384, 1}}), "[0:384, 5:6]");
  EXPECT_EQ(ToString(Shape{}), "[]");
  EXPECT_EQ(ElementsOf(Shape{}), 1);
  EXPECT_EQ(WholeOf({2, 3}), (Box{{0, 0}, {2, 3}}));
}

TEST(CheckTensorTest, RefusesWhatNoLayoutMayHold) {
  EXPECT_TRUE(CheckTensor({"x", DType::kF32, {}}).ok());
  EXPECT_TRUE(CheckTensor({"gewicht.\xc3\xa4", DType::kF32, {0, 3}}).ok());
  EXPECT_FALSE(CheckTensor({"", DType::kF32, {1}}).ok());
  EXPECT_FALSE(CheckTensor({"a\nb", DType::kF32, {1}}).ok());
  EXPECT_FALSE(CheckTensor({"a\xff", DType::kF32, {1}}).ok());
  EXPECT_FALSE(CheckTensor({"a\xc3", DType::kF32, {1}}).ok());
  EXPECT_FALSE(CheckTensor({std::string(kMaxNameBytes + 1, 'x'), DType::kF32, {1}}).ok());
  EXPECT_FALSE(CheckTensor({"x", static_cast<DType>(kDTypeCount), {1}}).ok());
  EXPECT_FALSE(CheckTensor({"x", DType::kF32, {-1}}).ok());
  EXPECT_FALSE(CheckTensor({"x", DType::kF32, Shape(kMaxDims + 1, 1)}).ok());
  EXPECT_FALSE(CheckTensor({"x", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}).ok());
  EXPECT_FALSE(CheckTensor({"x", DType::kF32, {0, int64_t{1} << 62, int64_t{1} << 62}}).ok());
}

TEST(CheckBoxTest, ShowsBoxAndShape) {
  const TensorInfo tensor{"w", DType::kF32, {4, 6}};
  EXPECT_TRUE(CheckBox({{4, 0}, {0, 6}}, tensor).ok());
  const Status outside = CheckBox({{3, 0}, {2, 6}}, tensor);
  EXPECT_EQ(outside.code(), Code::kInvalidArgument);
  EXPECT_NE(outside.message().find("'w'"), std::string::npos) << outside.message();
  EXPECT_NE(outside.message().find("[4, 6]"), std::string::npos) << outside.message();
  EXPECT_FALSE(CheckBox({{0}, {4}}, tensor).ok());
  EXPECT_FALSE(CheckBox({{-1, 0}, {2, 2}}, tensor).ok());
  EXPECT_FALSE(CheckBox({{INT64_MAX, 0}, {1, 1}}, tensor).ok());
}

TEST(BoxTest, Contains) {
  const Box a{{0, 0}, {4, 4}};
  EXPECT_TRUE(Contains(a, {{1, 1}, {3, 3}}));
  EXPECT_FALSE(Contains(a, {{1, 1}, {4, 3}}));
}

}  // namespace
}  // namespace weightcast::plan
