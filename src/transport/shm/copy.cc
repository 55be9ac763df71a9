#include "transport/shm/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace weightcast::transport::shm {

#if defined(__x86_64__)
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStep = 128;  // Two lines: what the processor fetches together.

void StreamStep(std::byte* to, const std::byte* from) {
  __m128i words[kStep / sizeof(__m128i)];
  for (size_t i = 0; i < std::size(words); ++i) {
    words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
  }
  for (size_t i = 0; i < std::size(words); ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, words[i]);
  }
}

/// As many pages as it can, `streams` of them at a time. How many bytes that was.
template <size_t kStreams>
size_t StreamPages(std::byte* to, const std::byte* from, size_t size) {
  size_t done = 0;
  for (; size - done >= kStreams * kPage; done += kStreams * kPage) {
    for (size_t at = 0; at < kPage; at += kStep) {
      for (size_t stream = 0; stream < kStreams; ++stream) {
        const size_t offset = done + stream * kPage + at;
        StreamStep(to + offset, from + offset);
      }
    }
  }
  return done;
}

bool ManyStreams() {
  static const bool intel = __builtin_cpu_is("intel") != 0;
  return intel;
}

}  // namespace

void CopyUncached(std::byte* to, const std::byte* from, size_t size) {
  // Whole lines of the target, or each would be fetched after all.
  const size_t head = std::min(size, (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64);
  std::memcpy(to, from, head);
  std::byte* const begin = to + head;
  const size_t rest = size - head;
  const size_t done = head + (ManyStreams() ? StreamPages<4>(begin, from + head, rest)
                                            : StreamPages<1>(begin, from + head, rest));
  // Non-temporal stores are weakly ordered: they must be out before anyone is told.
  _mm_sfence();
  std::memcpy(to + done, from + done, size - done);
}
#else
void CopyUncached(std::byte* to, const std::byte* from, size_t size) { std::memcpy(to, from, size); }
#endif

}  // namespace weightcast::transport::shm
