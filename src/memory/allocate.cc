#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <limits>
#include <map>
#include <mutex>

#include "base/available.h"
#include "base/fd.h"
#include "base/strings.h"
#include "memory/shared.h"
#include "weightcast/memory.h"

namespace weightcast {
namespace {

/// All live buffers by base address: they never overlap.
class Directory {
 public:
  struct Entry {
    Allocation allocation;
    std::weak_ptr<SharedBuffer> buffer;
  };
  /// Never destroyed: buffers may outlive static destruction.
  static Directory& Get() {
    static auto* directory = new Directory;
    return *directory;
  }
  void Add(const Allocation& allocation, const std::shared_ptr<SharedBuffer>& buffer) {
    const std::lock_guard lock(mutex_);
    entries_[allocation.base] = {allocation, buffer};
  }
  void Remove(std::byte* base) {
    const std::lock_guard lock(mutex_);
    entries_.erase(base);
  }
  std::optional<SharedRange> Find(std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    auto after = entries_.upper_bound(bytes.data());
    if (after == entries_.begin()) return std::nullopt;
    const Entry& entry = std::prev(after)->second;
    const auto offset = static_cast<uint64_t>(bytes.data() - entry.allocation.base);
    if (offset > entry.allocation.length || bytes.size() > entry.allocation.length - offset) {
      return std::nullopt;
    }
    auto buffer = entry.buffer.lock();
    if (buffer == nullptr) return std::nullopt;  // Its last handle is going away just now.
    const int fd = buffer->fd();
    return SharedRange{fd, offset, entry.allocation, std::move(buffer)};
  }

 private:
  std::mutex mutex_;
  std::map<const std::byte*, Entry, std::less<>> entries_;
};

class MemfdBuffer final : public SharedBuffer {
 public:
  MemfdBuffer(UniqueFd fd, std::byte* base, size_t size, size_t mapped)
      : fd_(std::move(fd)), base_(base), size_(size), mapped_(mapped) {}
  MemfdBuffer(const MemfdBuffer&) = delete;
  MemfdBuffer& operator=(const MemfdBuffer&) = delete;
  ~MemfdBuffer() override {
    // Out of the directory first: once unmapped, the address may be anyone's.
    Directory::Get().Remove(base_);
    munmap(base_, mapped_);
  }
  std::span<std::byte> bytes() override { return {base_, size_}; }
  [[nodiscard]] int fd() const override { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::byte* base_;
  size_t size_;
  size_t mapped_;
};

constexpr std::string_view kSmaller = "; ask for less, or raise the limits of memory and open files";
constexpr std::string_view kNoSeals = "; let kernel and sandbox seal files of memfd_create";

Status TooMuch(size_t bytes, std::string_view why) {
  return Error(Code::kExhausted, "cannot allocate ", HumanBytes(static_cast<double>(bytes)),
               " of shared memory: ", why);
}

}  // namespace

uint64_t NextAllocationIdentity() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::optional<SharedRange> FindShared(std::span<const std::byte> bytes) {
  return Directory::Get().Find(bytes);
}

Result<std::shared_ptr<SharedBuffer>> Allocate(size_t bytes) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "cannot allocate 0 bytes; ask for at least 1");
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > static_cast<size_t>(std::numeric_limits<off_t>::max()) - page) {
    return TooMuch(bytes, "that is more than any machine has; ask for less");
  }
  const size_t mapped = (bytes + page - 1) / page * page;
  // The reserve below would find a host's end by itself, but at the limit of a control group it wakes
  // the kernel's OOM killer instead of failing.
  if (const uint64_t available = AvailableMemory(); mapped > available) {
    return TooMuch(bytes,
                   StrCat("only ", HumanBytes(double(available)), " are free to this process", kSmaller));
  }
  UniqueFd fd(memfd_create("weightcast", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return TooMuch(bytes, StrCat("memfd_create: ", ErrnoText(errno), kSmaller));
  while (fallocate(fd.get(), 0, 0, static_cast<off_t>(mapped)) != 0) {
    if (errno != EINTR)
      return TooMuch(bytes, StrCat("its pages could not be reserved: ", ErrnoText(errno), kSmaller));
  }
  // Peers map it only when nobody can cut it short under them: touching what was cut off is SIGBUS.
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return TooMuch(bytes, StrCat("its size could not be sealed: ", ErrnoText(errno), kNoSeals));
  }
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (base == MAP_FAILED)
    return TooMuch(bytes, StrCat("it could not be mapped: ", ErrnoText(errno), kSmaller));
  auto buffer = std::make_shared<MemfdBuffer>(std::move(fd), static_cast<std::byte*>(base), bytes, mapped);
  Directory::Get().Add({static_cast<std::byte*>(base), bytes, NextAllocationIdentity()}, buffer);
  return std::shared_ptr<SharedBuffer>(std::move(buffer));
}

}  // namespace weightcast
