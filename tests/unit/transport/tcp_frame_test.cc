#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "transport/tcp/frame.h"

namespace weightcast::transport::tcp {
namespace {

using Outcome = ParsedFrame::Outcome;

Frame Example(FrameType type) {
  return {.type = type,
          .has_signal = type == FrameType::kWrite,
          .first = type == FrameType::kSignal,
          .sequence = 0x01020304,
          .region = 7,
          .generation = 9,
          .grant = {.slot = 3, .id = 0x1122334455667788},
          .offset = 4096,
          .length = 1U << 20,
          .signal = {.grant = {.slot = 63, .id = 5}, .transfer = 6, .chunk = 7, .chunks = 8, .checksum = 99},
          .code = Code::kFenced,
          .lane = 12,
          .heard = true};
}

constexpr FrameType kTypes[] = {FrameType::kWrite,  FrameType::kSignal, FrameType::kRead,    FrameType::kAck,
                                FrameType::kResult, FrameType::kData,   FrameType::kLaneOver};

TEST(TcpFrameTest, ComesBackAsItWas) {
  for (const FrameType type : kTypes) {
    const Frame in = Example(type);
    std::array<std::byte, kMaxFrameSize> bytes{};
    const size_t size = EncodeFrame(in, bytes);
    Frame out;
    const auto parsed = ParseFrame(bytes, out);
    ASSERT_EQ(parsed.outcome, Outcome::kFrame) << parsed.what;
    EXPECT_EQ(parsed.size, size);
    EXPECT_EQ(out.type, type);
    EXPECT_EQ(out.sequence, in.sequence);
    EXPECT_EQ(out.has_signal, in.has_signal);
    EXPECT_EQ(out.first, in.first);
    EXPECT_EQ(out.payload(), type == FrameType::kWrite || type == FrameType::kData ? in.length : 0);
    if (type == FrameType::kWrite || type == FrameType::kRead) {
      EXPECT_EQ(out.region, in.region);
      EXPECT_EQ(out.generation, in.generation);
      EXPECT_EQ(out.offset, in.offset);
      EXPECT_EQ(out.length, in.length);
    }
    EXPECT_TRUE(type != FrameType::kWrite || out.grant == in.grant);
    if (type == FrameType::kWrite || type == FrameType::kSignal) {
      EXPECT_EQ(out.signal.grant, in.signal.grant);
      EXPECT_EQ(out.signal.transfer, 6U);
      EXPECT_EQ(out.signal.chunk, 7U);
      EXPECT_EQ(out.signal.chunks, 8U);
      EXPECT_EQ(out.signal.checksum, 99U);
    }
    if (type == FrameType::kResult) {
      EXPECT_EQ(out.code, Code::kFenced);
    }
    if (type == FrameType::kLaneOver) {
      EXPECT_EQ(out.lane, 12);
      EXPECT_TRUE(out.heard);
    }
  }
}

/// The layout that docs/wire.md fixes, byte by byte.
TEST(TcpFrameTest, BytesOnTheWire) {
  std::array<std::byte, kMaxFrameSize> bytes{};
  const auto at = [&](size_t index) { return static_cast<int>(bytes[index]); };
  EXPECT_EQ(EncodeFrame(Example(FrameType::kWrite), bytes), 80U);
  EXPECT_EQ(at(0), 'W');
  EXPECT_EQ(at(1), 'C');
  EXPECT_EQ(at(2), 1);
  EXPECT_EQ(at(3), 1);
  EXPECT_EQ(at(4), 4);
  EXPECT_EQ(at(7), 1);
  EXPECT_EQ(at(8), 7);
  EXPECT_EQ(at(12), 9);
  EXPECT_EQ(at(16), 3);
  EXPECT_EQ(at(24), 0x88);
  EXPECT_EQ(at(33), 0x10);
  EXPECT_EQ(at(42), 0x10);
  EXPECT_EQ(at(48), 63);
  EXPECT_EQ(at(72), 99);
  EXPECT_EQ(EncodeFrame(Example(FrameType::kSignal), bytes), 40U);
  EXPECT_EQ(at(3), 2);
  EXPECT_EQ(EncodeFrame(Example(FrameType::kRead), bytes), 32U);
  EXPECT_EQ(EncodeFrame(Example(FrameType::kAck), bytes), 8U);
  EXPECT_EQ(EncodeFrame(Example(FrameType::kResult), bytes), 16U);
  EXPECT_EQ(EncodeFrame(Example(FrameType::kData), bytes), 16U);
  EXPECT_EQ(EncodeFrame(Example(FrameType::kLaneOver), bytes), 16U);
  EXPECT_EQ(at(4), 4);
  EXPECT_EQ(at(8), 12);
  EXPECT_EQ(at(10), 1);
}

TEST(TcpFrameTest, AnythingShorterAsksForMore) {
  for (const FrameType type : kTypes) {
    std::array<std::byte, kMaxFrameSize> bytes{};
    const size_t size = EncodeFrame(Example(type), bytes);
    for (size_t cut = 0; cut < size; ++cut) {
      // Exactly as long as it says, so that the sanitizer sees a byte too far.
      const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut));
      Frame frame;
      EXPECT_EQ(ParseFrame(part, frame).outcome, Outcome::kShort);
    }
  }
}

TEST(TcpFrameTest, WhatTheFormatForbidsIsMalformed) {
  const auto damaged = [](FrameType type, size_t index, int value) {
    std::array<std::byte, kMaxFrameSize> bytes{};
    EncodeFrame(Example(type), bytes);
    bytes[index] = static_cast<std::byte>(value);
    Frame frame;
    return ParseFrame(bytes, frame).outcome == Outcome::kMalformed;
  };
  for (const FrameType type : kTypes) {
    EXPECT_TRUE(damaged(type, 0, 'X'));
    EXPECT_TRUE(damaged(type, 2, 0));
    EXPECT_TRUE(damaged(type, 2, 8));
    EXPECT_TRUE(damaged(type, 3, 4));
    EXPECT_EQ(damaged(type, 3, 1), type != FrameType::kWrite);
    EXPECT_EQ(damaged(type, 3, 2), type != FrameType::kWrite && type != FrameType::kSignal);
  }
  EXPECT_TRUE(damaged(FrameType::kWrite, 16, 64));  // Grant slot.
  EXPECT_TRUE(damaged(FrameType::kWrite, 20, 1));   // Reserved.
  EXPECT_TRUE(damaged(FrameType::kWrite, 47, 1));   // Length of 2^56.
  EXPECT_TRUE(damaged(FrameType::kWrite, 48, 64));  // Slot of its signal.
  EXPECT_TRUE(damaged(FrameType::kSignal, 8, 200));
  EXPECT_TRUE(damaged(FrameType::kRead, 31, 1));
  EXPECT_TRUE(damaged(FrameType::kData, 15, 1));
  EXPECT_TRUE(damaged(FrameType::kResult, 8, 13));
  EXPECT_TRUE(damaged(FrameType::kResult, 9, 1));
  EXPECT_TRUE(damaged(FrameType::kResult, 15, 1));
  EXPECT_TRUE(damaged(FrameType::kLaneOver, 10, 2));
  EXPECT_TRUE(damaged(FrameType::kLaneOver, 11, 1));
  EXPECT_TRUE(damaged(FrameType::kLaneOver, 15, 1));
}

/// What parses, encodes to the very bytes again: nothing is lost and nothing is made up.
TEST(TcpFrameTest, RandomBytesParseToThemselvesOrNotAtAll) {
  std::mt19937_64 random(1);
  int frames = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::array<std::byte, kMaxFrameSize> bytes;
    for (auto& byte : bytes) byte = random() % 4 == 0 ? static_cast<std::byte>(random()) : std::byte{0};
    if (random() % 8 != 0) bytes[0] = std::byte{'W'}, bytes[1] = std::byte{'C'};
    if (random() % 8 != 0) bytes[2] = static_cast<std::byte>(1 + random() % 7);
    if (random() % 8 != 0) bytes[3] = std::byte{0};
    Frame frame;
    const auto parsed = ParseFrame(bytes, frame);
    if (parsed.outcome != Outcome::kFrame) continue;
    ++frames;
    std::array<std::byte, kMaxFrameSize> again{};
    ASSERT_EQ(EncodeFrame(frame, again), parsed.size);
    ASSERT_TRUE(
        std::equal(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(parsed.size), bytes.begin()));
  }
  EXPECT_GT(frames, 10'000);
}

}  // namespace
}  // namespace weightcast::transport::tcp
