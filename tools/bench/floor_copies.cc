#include "tools/bench/floor_copies.h"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace weightcast::tools {

void CopyThroughCaches(std::span<std::byte> to, std::span<const std::byte> from) {
  constexpr size_t kCopied = 1 << 20;
  for (size_t at = 0; at < from.size(); at += kCopied)
    std::memcpy(to.data() + at, from.data() + at, std::min(kCopied, from.size() - at));
}

void CopyPastCaches(std::span<std::byte> to, std::span<const std::byte> from) {
#ifdef __SSE2__
  // Both begin at a page.
  const size_t lines = from.size() / 64;
  const auto* in = reinterpret_cast<const __m128i*>(from.data());
  auto* out = reinterpret_cast<__m128i*>(to.data());
  for (size_t line = 0; line < lines; ++line, in += 4, out += 4) {
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to.data() + lines * 64, from.data() + lines * 64, from.size() - lines * 64);
  _mm_sfence();
#else
  CopyThroughCaches(to, from);
#endif
}

void Refresh(std::span<std::byte> bytes, uint64_t round) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = (round << 40) + i;
    std::memcpy(bytes.data() + i, &word, 8);
  }
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(i), bytes.end(), static_cast<std::byte>(round));
}

uint64_t Sum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    sum += word;
  }
  for (; i < bytes.size(); ++i) sum += static_cast<uint64_t>(bytes[i]);
  return sum;
}

}  // namespace weightcast::tools
