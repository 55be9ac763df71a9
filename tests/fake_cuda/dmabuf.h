#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

/// Descriptors that stand for fake device memory to whoever plays another device (tests/fake_ibverbs). One is
/// a socket in which a single message waits, for ever: the files that hold the memory, and which bytes of
/// them. So the machine sees when the last copy of the descriptor is closed, and the memory stays until then.
namespace weightcast::fake_cuda {

struct DmaBufPart {
  int fd = -1;
  uint64_t offset = 0;  ///< In the file, of whole pages.
  uint64_t length = 0;
};
inline constexpr size_t kMostDmaBufParts = 128;

/// The descriptor; `watch` hangs up when it is closed everywhere. -1: there are too many parts, or no
/// descriptors.
int MakeDmaBuf(const std::vector<DmaBufPart>& parts, int& watch);
/// Maps these bytes, of whole pages, side by side. nullptr with errno: it is none of ours, or is shorter.
void* MapDmaBuf(int fd, uint64_t offset, size_t length);

}  // namespace weightcast::fake_cuda
