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
constexpr size_t kStreams = 4;
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

}  // namespace

void CopyUncached(std::byte* to, const std::byte* from, size_t size) {
  // Whole lines of the target, or each would be fetched after all.
  const size_t head = std::min(size, (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64);
  std::memcpy(to, from, head);
  size_t done = head;
  for (; size - done >= kStreams * kPage; done += kStreams * kPage) {
    for (size_t at = 0; at < kPage; at += kStep) {
      for (size_t stream = 0; stream < kStreams; ++stream) {
        const size_t offset = done + stream * kPage + at;
        StreamStep(to + offset, from + offset);
      }
    }
  }
  // Non-temporal stores are weakly ordered: they must be out before anyone is told.
  _mm_sfence();
  std::memcpy(to + done, from + done, size - done);
}
#else
void CopyUncached(std::byte* to, const std::byte* from, size_t size) { std::memcpy(to, from, size); }
#endif

}  // namespace weightcast::transport::shm
