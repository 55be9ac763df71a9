// Static libraries of newer distributions want arc4random (glibc 2.36). With these two of our own the
// binary runs wherever glibc 2.34 is.
#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" {

// NOLINTNEXTLINE(readability-identifier-naming): the C library's name.
void arc4random_buf(void* out, size_t size) noexcept {
  auto* at = static_cast<unsigned char*>(out);
  while (size > 0) {
    const ssize_t got = getrandom(at, size, 0);
    if (got < 0) continue;  // Interrupted: a blocking getrandom has no other error.
    at += got;
    size -= static_cast<size_t>(got);
  }
}

// NOLINTNEXTLINE(readability-identifier-naming)
uint32_t arc4random() noexcept {
  uint32_t value = 0;
  arc4random_buf(&value, sizeof value);
  return value;
}

}  // extern "C"
