#include "transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/advice.h"
#include "base/available.h"
#include "base/strings.h"

namespace weightcast::transport::shm {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // Linux 5.1
#endif

constexpr std::string_view kMakeRoom = "; end other processes, or raise the limits of memory and open files";
constexpr std::string_view kNoSeals =
    "; let kernel and sandbox seal files of memfd_create, or leave shm out in setting transport";

Status TooMuch(size_t size, std::string_view why) {
  return Error(Code::kExhausted, "cannot make ", HumanBytes(static_cast<double>(size)),
               " of shared memory: ", why);
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  Mapping taken(std::move(other));
  std::swap(base_, taken.base_);
  std::swap(mapped_, taken.mapped_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, mapped_);
}

Result<Mapping> Mapping::Map(int fd, uint64_t offset, size_t length, bool writable) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t lead = offset % page;
  Mapping made;
  made.mapped_ = lead + length;
  void* base = mmap(nullptr, made.mapped_, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd,
                    static_cast<off_t>(offset - lead));
  if (base == MAP_FAILED) {
    const Code code = errno == EPERM || errno == EACCES ? Code::kPermission : Code::kExhausted;
    return Error(code, "cannot map ", HumanBytes(static_cast<double>(length)),
                 " of shared memory: ", ErrnoAndAdvice(errno));
  }
  made.base_ = base;
  made.data_ = static_cast<std::byte*>(base) + lead;
  made.size_ = length;
  return made;
}

void Mapping::HideFromChildren() const { madvise(base_, mapped_, MADV_DONTFORK); }

Result<SharedPages> CreateShared(size_t size, bool read_only_for_peers) {
  // Reserving finds the host's end by itself, but at a control group's limit it wakes the OOM killer.
  if (const uint64_t available = AvailableMemory(); size > available) {
    return TooMuch(size,
                   StrCat("only ", HumanBytes(double(available)), " are free to this process", kMakeRoom));
  }
  SharedPages pages;
  pages.fd = UniqueFd(memfd_create("weightcast-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!pages.fd.valid()) return TooMuch(size, StrCat("memfd_create: ", ErrnoText(errno), kMakeRoom));
  while (fallocate(pages.fd.get(), 0, 0, static_cast<off_t>(size)) != 0) {
    if (errno != EINTR)
      return TooMuch(size, StrCat("its pages could not be reserved: ", ErrnoText(errno), kMakeRoom));
  }
  WC_ASSIGN_OR_RETURN(pages.mapping, Mapping::Map(pages.fd.get(), 0, size, true));
  const int only_reading = read_only_for_peers ? F_SEAL_FUTURE_WRITE : 0;
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
  // Kernels before 5.1 do not know the first seal: peers then merely promise not to write.
  if (fcntl(pages.fd.get(), F_ADD_SEALS, kSize | only_reading) != 0 &&
      fcntl(pages.fd.get(), F_ADD_SEALS, kSize) != 0) {
    return TooMuch(size, StrCat("its size could not be sealed: ", ErrnoText(errno), kNoSeals));
  }
  return pages;
}

bool CannotShrink(int fd, uint64_t length) {
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat info{};
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &info) == 0 && info.st_size >= 0 &&
         static_cast<uint64_t>(info.st_size) >= length;
}

Result<Mapping> MapPeer(int fd, uint64_t offset, size_t length, bool writable) {
  if (length == 0 || offset > UINT64_MAX - length || !CannotShrink(fd, offset + length)) {
    return Error(Code::kPermission, "the peer's shared memory is shorter than the ", length, " bytes at ",
                 offset, " that the peer announced, or not sealed against shrinking", kSameRelease);
  }
  return Mapping::Map(fd, offset, length, writable);
}

}  // namespace weightcast::transport::shm
