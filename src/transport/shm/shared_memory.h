#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/fd.h"
#include "weightcast/status.h"

namespace weightcast::transport::shm {

/// Owns one shared mapping of a descriptor. Move-only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  /// Maps [offset, offset + length) of `fd`; the offset may lie anywhere in a page. kExhausted where the
  /// address space or the number of mappings does not suffice.
  static Result<Mapping> Map(int fd, uint64_t offset, size_t length, bool writable);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] bool valid() const { return base_ != nullptr; }
  /// Keeps it from the children of a fork: a child must never be able to write to a peer.
  void HideFromChildren() const;

  template <typename T>
  [[nodiscard]] T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void* base_ = nullptr;  ///< Of the mapping: `data_` rounded down to a page.
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Memory of ours that peers map.
struct SharedPages {
  UniqueFd fd;
  Mapping mapping;
};

/// A zeroed memfd of `size` bytes: its pages are reserved, so that full memory is an error here and not
/// SIGBUS later, and its size is sealed. `read_only_for_peers`: only this mapping can write.
Result<SharedPages> CreateShared(size_t size, bool read_only_for_peers);

/// Whether [0, length) of `fd` will stay there whatever its owner does: a memfd sealed against shrinking
/// and at least that long. Anything else that a peer hands over could kill us by SIGBUS or block us.
bool CannotShrink(int fd, uint64_t length);

/// Maps what a peer handed over, after CannotShrink; kPermission otherwise.
Result<Mapping> MapPeer(int fd, uint64_t offset, size_t length, bool writable);

}  // namespace weightcast::transport::shm
