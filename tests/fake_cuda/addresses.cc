#include "fake_cuda/addresses.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "fake_cuda/config.h"

namespace weightcast::fake_cuda {
namespace {

constexpr int kAnybody = -1;

}  // namespace

uint64_t Addresses::Take(int client, bool host, uint64_t length) {
  length = RoundUp(length, kGranularity);
  for (const int owner : {client, kAnybody}) {
    const auto found = free_.find({owner, host, length});
    if (found == free_.end() || found->second.empty()) continue;
    const uint64_t address = found->second.back();
    found->second.pop_back();
    return address;
  }
  uint64_t& next = host ? next_host_ : next_device_;
  const uint64_t end = host ? kWindow + kAlias : kWindow + kDeviceSpan;
  if (end - next < length) Wrong("machine", "all addresses are used up");
  return std::exchange(next, next + length);
}

void Addresses::Give(int client, bool host, uint64_t address, uint64_t length) {
  free_[{client, host, RoundUp(length, kGranularity)}].push_back(address);
}

void Addresses::Forget(int client) {
  std::map<Key, std::vector<uint64_t>> kept;
  for (auto& [key, addresses] : free_) {
    Key owner = key;
    if (owner.client == client) owner.client = kAnybody;
    auto& all = kept[owner];
    all.insert(all.end(), addresses.begin(), addresses.end());
  }
  free_ = std::move(kept);
}

void MapAt(uint64_t address, uint64_t length, int protection, int flags, int fd) {
  constexpr off_t kStart = 0;  // As wide as the call takes it: above an int lies what was in the register.
  const long mapped = syscall(SYS_mmap, address, length, protection, flags, fd, kStart);
  if (mapped != static_cast<long>(address)) {
    Wrong("mmap", "address " + std::to_string(address) + " cannot be used: " + std::strerror(errno));
  }
}

void UnmapAt(uint64_t address, uint64_t length) { syscall(SYS_munmap, address, length); }

void ProtectAt(uint64_t address, uint64_t length, int protection) {
  syscall(SYS_mprotect, address, length, protection);
}

}  // namespace weightcast::fake_cuda
