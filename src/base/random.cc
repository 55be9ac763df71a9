#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

namespace weightcast {

void FillRandom(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) std::abort();  // No randomness means no identity: nothing safe can be done.
    out = out.subspan(static_cast<size_t>(got));
  }
}

uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) FillRandom(std::as_writable_bytes(std::span(&id, 1)));
  return id;
}

}  // namespace weightcast
