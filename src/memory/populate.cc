#include "memory/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/strings.h"

namespace weightcast {
namespace {

// Linux 5.14; older C libraries do not know the names.
constexpr int kPopulateRead = 22;   // MADV_POPULATE_READ
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE

/// For kernels before 5.14. Adding nothing atomically faults the page in for writing and cannot undo
/// another thread's store. Unlike madvise it crashes on memory that is not what the caller said.
void Touch(std::span<std::byte> bytes, size_t page, bool write) {
  auto* at = reinterpret_cast<unsigned char*>(bytes.data());
  auto* const end = at + bytes.size();
  while (at < end) {
    if (write) {
      std::atomic_ref(*at).fetch_or(0, std::memory_order_relaxed);
    } else {
      (void)std::atomic_ref(*at).load(std::memory_order_relaxed);
    }
    at = reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(at) / page + 1) * page);
  }
}

Status WhyNot(int error, std::span<std::byte> bytes, bool write) {
  const std::string those =
      StrCat(bytes.size(), " bytes at address ", reinterpret_cast<uintptr_t>(bytes.data()));
  if (error == ENOMEM)
    return Error(Code::kInvalidArgument, "part of the ", those,
                 " is not mapped; register only memory that is allocated");
  if (error == EFAULT || error == EINVAL || error == EPERM)
    return Error(Code::kInvalidArgument, "the ", those, " are not ", write ? "writable" : "readable",
                 "; register them with another access, or other memory");
  return Error(Code::kExhausted, "cannot make the pages of the ", those, " present: ", ErrnoText(error),
               "; give this process more memory, or if memory is faulty (see dmesg), use another host");
}

/// EINVAL is both "this kernel does not know the advice" and "not this kind of memory".
bool KernelKnows() {
  static const bool known = [] {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* probe = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) return false;
    const bool ok = madvise(probe, page, kPopulateWrite) == 0;
    munmap(probe, page);
    return ok;
  }();
  return known;
}

}  // namespace

Status Populate(std::span<std::byte> bytes, Access access) {
  if (bytes.empty()) return Status::Ok();
  const bool write = access == Access::kGranted || access == Access::kReadWrite;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (!KernelKnows()) {
    Touch(bytes, page, write);
    return Status::Ok();
  }
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size() + page - 1) / page * page;
  while (madvise(reinterpret_cast<void*>(begin), end - begin, write ? kPopulateWrite : kPopulateRead) != 0) {
    if (errno != EINTR && errno != EAGAIN) return WhyNot(errno, bytes, write);
  }
  return Status::Ok();
}

}  // namespace weightcast
