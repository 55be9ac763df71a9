#pragma once

#include <cstddef>

namespace weightcast::transport::shm {

/// From here on it is worth asking whether the bytes are in a cache.
inline constexpr size_t kLargeCopy = 64 * 1024;

/// memcpy for memory that no cache holds: past the caches with non-temporal stores. On Intel four pages at a
/// time, so that the hardware has four streams to fetch ahead (each ends at a page): over 256 MiB, 2 cores of
/// a Xeon (Ice Lake), pieces of 256 KiB: 10 to 11 GB/s, memcpy 7. Elsewhere one: an EPYC (Zen 5) does 13.5
/// beside a busy neighbour with one stream, 6.1 with four, memcpy 11.6. Within 64 MiB memcpy is the faster.
void CopyUncached(std::byte* to, const std::byte* from, size_t size);

}  // namespace weightcast::transport::shm
