#include "base/bytes.h"

#include <gtest/gtest.h>

#include <array>

namespace weightcast {
namespace {

enum class Colour : uint8_t { kRed = 1, kBlue = 7 };

struct Fields {
  uint32_t number = 0;
  bool yes = false;
  Colour colour = Colour::kRed;
  Code code = Code::kOk;
  std::array<std::byte, 3> raw{};
  std::pair<uint16_t, uint64_t> two;

  auto all() { return std::tie(number, yes, colour, code, raw, two); }
  bool operator==(const Fields&) const = default;
};

TEST(Bytes, FieldsComeBackAsTheyWere) {
  Fields fields{.number = 0x01020304,
                .yes = true,
                .colour = Colour::kBlue,
                .code = Code::kFenced,
                .raw = {std::byte{9}, std::byte{8}, std::byte{7}},
                .two = {5, 6}};
  ByteWriter out;
  out.Put(fields.all());
  // One byte for a bool, an enum and a byte each.
  EXPECT_EQ(out.bytes().size(), 4U + 1 + 1 + 1 + 3 + 2 + 8);
  EXPECT_TRUE(out.bytes().starts_with("\x04\x03\x02\x01\x01\x07"));
  ByteReader in(out.bytes());
  Fields read;
  in.Get(read.all());
  EXPECT_TRUE(in.AtEnd());
  EXPECT_EQ(read, fields);
}

TEST(Bytes, WhatIsCutShortIsZeroAndNotOk) {
  ByteWriter out;
  out.Put(uint32_t{5}, uint8_t{1});
  ByteReader in(out.bytes());
  uint32_t first = 9;
  uint64_t second = 9;
  std::array<uint16_t, 2> third{9, 9};
  in.Get(first, second, third);
  EXPECT_EQ(first, 5U);
  EXPECT_EQ(second, 0U);
  EXPECT_EQ(third, (std::array<uint16_t, 2>{}));
  EXPECT_FALSE(in.ok());
}

TEST(Bytes, AnyByteButZeroIsTrueAndAnUnknownCodeIsInternal) {
  ByteReader in(std::string_view("\x02\xff\x00", 3));
  bool yes = false;
  Code code = Code::kOk;
  bool no = true;
  in.Get(yes, code, no);
  EXPECT_TRUE(yes);
  EXPECT_EQ(code, Code::kInternal);
  EXPECT_FALSE(no);
  EXPECT_TRUE(in.AtEnd());
}

struct Room {
  std::array<char, 8> bytes{};
  size_t size = 0;
  void append(const char* more, size_t count) {
    std::memcpy(bytes.data() + size, more, count);
    size += count;
  }
};

TEST(Bytes, AWriterFillsWhatItIsGiven) {
  BasicByteWriter<Room> out;
  out.Put(uint16_t{0x0102}, uint8_t{3});
  const Room room = out.Take();
  EXPECT_EQ(std::string_view(room.bytes.data(), room.size), "\x02\x01\x03");
}

}  // namespace
}  // namespace weightcast
