#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace weightcast::fake_cuda {

// Where device and host memory of the machine lies. No loader, heap or sanitizer uses these addresses: ASan
// has its shadow below 16 TiB, TSan allows only some, those below 512 GiB among them.
#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kWindow = 0x10'0000'0000;
#else
inline constexpr uint64_t kWindow = 0x2000'0000'0000;
#endif
inline constexpr uint64_t kDeviceSpan = 0x20'0000'0000;
inline constexpr uint64_t kHostSpan = 0x10'0000'0000;
/// Inline, the machine sees device memory this far above where its client has a reservation.
inline constexpr uint64_t kAlias = kDeviceSpan + kHostSpan;
inline constexpr uint64_t kGranularity = 2 << 20;

inline bool IsDevice(uint64_t address) { return address - kWindow < kDeviceSpan; }
inline bool IsPinned(uint64_t address) { return address - kWindow - kDeviceSpan < kHostSpan; }
inline uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

/// Gives addresses that are unique in the machine. What a client has freed it gets again first, as from
/// libcuda: whoever knows memory by its address is found out.
class Addresses {
 public:
  uint64_t Take(int client, bool host, uint64_t length);
  void Give(int client, bool host, uint64_t address, uint64_t length);
  /// What the client had freed is anybody's.
  void Forget(int client);

 private:
  struct Key {
    int client;
    bool host;
    uint64_t length;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<uint64_t>> free_;
  uint64_t next_device_ = kWindow;
  uint64_t next_host_ = kWindow + kDeviceSpan;
};

/// mmap without a sanitizer's opinion. Aborts where it fails.
void MapAt(uint64_t address, uint64_t length, int protection, int flags, int fd);
void UnmapAt(uint64_t address, uint64_t length);
void ProtectAt(uint64_t address, uint64_t length, int protection);

}  // namespace weightcast::fake_cuda
