#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kernels/convert.h"
#include "kernels/copy_list.h"
#include "kernels/gather.h"
#include "kernels/hash.h"
#include "kernels/host_kernels.h"
#include "kernels/ptx.h"

namespace weightcast::kernels {
namespace {

/// Every 251st value of F32 (17 million), and those around each power of two.
template <typename Fn>
void ForEachF32(Fn fn) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 251) fn(static_cast<uint32_t>(bits));
  for (uint32_t power = 0; power < 512; ++power)
    for (uint32_t near = 0; near < 64; ++near) fn((power << 23) + near - 32);
}

template <typename T>
uint64_t AddressOf(const T* data) {
  return reinterpret_cast<uint64_t>(data);
}

template <typename P>
void Launch(std::string_view kernel, P parameter) {
  void* pointer = &parameter;
  FindHostKernel(kernel)->run({3, 64}, &pointer);
}

TEST(Casts, OfF32ToF16AreTheCompilers) {
  uint64_t wrong = 0;
  ForEachF32([&](uint32_t bits) {
    const auto value = __builtin_bit_cast(float, bits);
    if (std::isnan(value)) return;
    wrong += ToF16(value) != __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
  });
  EXPECT_EQ(wrong, 0U);
}

TEST(Casts, OfF32ToBf16AreTheNearestEven) {
  uint64_t wrong = 0;
  ForEachF32([&](uint32_t bits) {
    const auto value = __builtin_bit_cast(float, bits);
    if (!std::isfinite(value)) return;
    // The neighbours below and above in magnitude; behind the largest comes infinity, at 2^128.
    const uint32_t below = bits >> 16;
    const auto of = [](uint32_t high) {
      const double magnitude =
          (high & 0x7fff) == 0x7f80 ? std::ldexp(1.0, 128) : __builtin_bit_cast(float, high << 16);
      return std::fabs(magnitude);
    };
    const double down = std::fabs(double{value}) - of(below);
    const double up = of(below + 1) - std::fabs(double{value});
    const uint32_t expected = down < up || (down == up && below % 2 == 0) ? below : below + 1;
    wrong += ToBf16(value) != expected;
  });
  EXPECT_EQ(wrong, 0U);
}

TEST(Casts, KeepNanWithItsSignAndPayload) {
  for (uint32_t payload = 1; payload < 0x800000; payload += 97) {
    for (const uint32_t sign : {0U, 1U}) {
      const auto value = __builtin_bit_cast(float, sign << 31 | kF32Infinity | payload);
      ASSERT_EQ(ToBf16(value), sign << 15 | 0x7fc0 | payload >> 16);
      ASSERT_EQ(ToF16(value), sign << 15 | 0x7e00 | payload >> 13);
    }
  }
}

TEST(Casts, OfAll16BitValues) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(__builtin_bit_cast(uint32_t, FromBf16(half)), bits << 16);
    const auto expected = static_cast<float>(__builtin_bit_cast(_Float16, half));
    ASSERT_EQ(__builtin_bit_cast(uint32_t, FromF16(half)), __builtin_bit_cast(uint32_t, expected)) << bits;
    if (std::isnan(expected)) continue;
    ASSERT_EQ((Cast<F16, BF16>(half)), ToBf16(expected));
    const float wide = FromBf16(half);
    if (std::isnan(wide)) continue;
    ASSERT_EQ((Cast<BF16, F16>(half)), __builtin_bit_cast(uint16_t, static_cast<_Float16>(wide)));
  }
}

TEST(Gather, EqualsPlainLoops) {
  std::mt19937_64 random(1);
  std::vector<uint32_t> source(20000);
  for (auto& value : source) value = static_cast<uint32_t>(random());
  for (int round = 0; round < 200; ++round) {
    const uint32_t dims = static_cast<uint32_t>(random() % (kBoxDims + 1));
    GatherParameters p{};
    std::vector<int64_t> places = {10000};  // Of the units, in row-major order.
    for (uint32_t d = 0; d < kBoxDims; ++d) {
      const bool used = d >= kBoxDims - dims;
      p.size[d] = used ? 1 + random() % 4 : 1;
      const int64_t stride = used ? static_cast<int64_t>(random() % 500) - 250 : 0;
      p.stride[d] = 4 * stride;
      std::vector<int64_t> longer;
      for (const int64_t place : places)
        for (uint64_t i = 0; i < p.size[d]; ++i) longer.push_back(place + static_cast<int64_t>(i) * stride);
      places = std::move(longer);
    }
    p.dims = dims;
    p.source = AddressOf(source.data() + 10000);
    p.first = random() % places.size();
    p.count = 1 + random() % (places.size() - p.first);
    std::vector<uint32_t> copied(p.count);
    std::vector<uint16_t> cast(p.count);
    p.target = AddressOf(copied.data());
    Launch("gather_4", p);
    p.target = AddressOf(cast.data());
    Launch("gather_f32_bf16", p);
    for (uint64_t i = 0; i < p.count; ++i) {
      const uint32_t expected = source[static_cast<size_t>(places[p.first + i])];
      ASSERT_EQ(copied[i], expected) << round;
      ASSERT_EQ(cast[i], ToBf16(__builtin_bit_cast(float, expected))) << round;
    }
  }
}

TEST(HashLeaves, EqualsXxhash) {
  std::mt19937_64 random(2);
  std::vector<uint8_t> data(3 * kLeafBytes + 100);
  for (auto& byte : data) byte = static_cast<uint8_t>(random());
  std::vector<uint64_t> lengths = {kLeafBytes - 1, kLeafBytes, kLeafBytes + 1, 3 * kLeafBytes + 33};
  for (uint64_t bytes = 1; bytes < 100; ++bytes) lengths.push_back(bytes);
  for (const uint64_t bytes : lengths) {
    for (const uint64_t offset : {0, 3}) {
      std::vector<uint64_t> sums(LeavesOf(bytes));
      Launch("hash_leaves", HashParameters{AddressOf(data.data() + offset), bytes, AddressOf(sums.data())});
      for (uint64_t leaf = 0; leaf < sums.size(); ++leaf) {
        const uint64_t begin = leaf * kLeafBytes;
        ASSERT_EQ(sums[leaf], XXH64(data.data() + offset + begin, std::min(kLeafBytes, bytes - begin), 0))
            << bytes;
      }
    }
  }
}

TEST(CopyList, CopiesEveryPieceAndNothingElse) {
  std::mt19937_64 random(3);
  std::vector<uint8_t> source(1 << 20);
  for (auto& byte : source) byte = static_cast<uint8_t>(random());
  for (int round = 0; round < 50; ++round) {
    std::vector<uint8_t> target(1 << 20);
    std::vector<uint8_t> expected(1 << 20);
    CopyList list{};
    list.count = static_cast<uint32_t>(random() % (kListPieces + 1));
    uint64_t at = 0;
    for (uint32_t i = 0; i < list.count; ++i) {
      const auto length = static_cast<uint32_t>(random() % (round % 2 == 0 ? 40 : 4500));
      const uint64_t from = random() % (source.size() - length);
      at += random() % 20;
      list.piece[i] = {AddressOf(source.data()) + from, AddressOf(target.data()) + at, length};
      std::memcpy(expected.data() + at, source.data() + from, length);
      at += length;
    }
    Launch("copy_list", list);
    ASSERT_TRUE(target == expected) << round;
    std::fill(target.begin(), target.end(), 0);
    Launch("copy_pieces", CopyPiecesParameters{AddressOf(list.piece), list.count, 0});
    ASSERT_TRUE(target == expected) << round;
  }
}

TEST(Ptx, IsMadeFromTheseSources) {
  std::string text;
  for (const char* name : {"convert.h", "copy_list.h", "device.cc", "digest.h", "digest_math.h", "fill.h",
                           "gather.h", "hash.h", "lane.h", "list.h", "quantise.h"}) {
    std::ostringstream one;
    one << std::ifstream(std::string(WC_KERNELS_DIR "/") + name).rdbuf();
    text += one.str();
  }
  std::string hex;
  for (const std::byte byte : HmacSha256("kernels", text)) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    hex +=
        {kDigits[std::to_integer<size_t>(byte >> 4)], kDigits[std::to_integer<size_t>(byte & std::byte{15})]};
  }
  const std::string expected = "// Made by scripts/make_kernels from sources " + hex + "\n";
  for (const std::string_view ptx : {PtxForSm80(), PtxForSm90()})
    EXPECT_TRUE(ptx.starts_with(expected)) << "run scripts/make_kernels";
}

}  // namespace
}  // namespace weightcast::kernels
