#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast {

enum class SliceSide : uint8_t { kLocal, kRemote };

/// Contiguous bytes of one region. Only a region makes a slice, and it refuses bytes outside itself. A slice
/// names bytes and owns nothing: a transfer refuses it once its region was closed or released. One that was
/// made by the default constructor names nothing, and transfers refuse it. Cheap to copy; thread safe.
template <SliceSide side>
class BasicSlice {
 public:
  BasicSlice() = default;
  [[nodiscard]] uint64_t length() const { return length_; }  ///< Bytes.
  /// `length` bytes from the `offset`-th byte of this slice on; kOutOfBounds if this slice does not hold
  /// them.
  [[nodiscard]] Result<BasicSlice> Slice(uint64_t offset, uint64_t length) const;
  friend bool operator==(const BasicSlice&, const BasicSlice&) = default;

 private:
  friend class SliceAccess;
  BasicSlice(uint64_t serial, uint32_t index, uint64_t offset, uint64_t length)
      : serial_(serial), offset_(offset), length_(length), index_(index) {}

  uint64_t serial_ = 0;  ///< Of the registration or import, new for each in this process; 0: names nothing.
  uint64_t offset_ = 0;  ///< From the first byte of what the serial names.
  uint64_t length_ = 0;
  uint32_t index_ = 0;  ///< Where to look for it.
};
using LocalSlice = BasicSlice<SliceSide::kLocal>;
using RemoteSlice = BasicSlice<SliceSide::kRemote>;

/// "bytes 8 to 24 of 16", as kOutOfBounds.
Status OutsideSlice(uint64_t offset, uint64_t length, uint64_t size);

template <SliceSide side>
Result<BasicSlice<side>> BasicSlice<side>::Slice(uint64_t offset, uint64_t length) const {
  if (length > length_ || offset > length_ - length) return OutsideSlice(offset, length, length_);
  return BasicSlice(serial_, index_, offset_ + offset, length);
}

/// Registered memory. Move-only; the destructor deregisters and waits, bounded by the lease, until no
/// peer can touch it. Registering pieces of one allocation shares one registration: it is kept until the
/// last region in it is closed. Thread safe.
class Region {
 public:
  class State;
  explicit Region(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Region(Region&&) = default;
  Region& operator=(Region&&) = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() = default;  ///< The work is State's destructor's.

  [[nodiscard]] uint64_t length() const;  ///< Bytes.
  [[nodiscard]] LocalSlice Whole() const;
  /// `length` bytes from the region's `offset`-th byte on; kOutOfBounds if the region does not hold them.
  [[nodiscard]] Result<LocalSlice> Slice(uint64_t offset, uint64_t length) const {
    return Whole().Slice(offset, length);
  }
  /// What a peer's Connection::Import needs: names, length and each transport's key. Opaque bytes.
  [[nodiscard]] std::string Descriptor() const;
  /// Ends the registration; our own transfers that use it end as kCancelled. kTimedOut when a stopped peer
  /// may still write: the memory must then be kept until a later Close succeeds.
  Status Close(TimePoint deadline);

 private:
  std::shared_ptr<State> state_;
};

/// A peer's region, usable on the connection that imported it until Connection::Release. Cheap to copy;
/// copies name the same import. Thread safe.
class RemoteRegion {
 public:
  RemoteRegion() = default;  ///< Names nothing.
  explicit RemoteRegion(const RemoteSlice& whole) : whole_(whole) {}
  [[nodiscard]] uint64_t length() const { return whole_.length(); }  ///< Bytes.
  [[nodiscard]] const RemoteSlice& Whole() const { return whole_; }
  /// As Region::Slice.
  [[nodiscard]] Result<RemoteSlice> Slice(uint64_t offset, uint64_t length) const {
    return whole_.Slice(offset, length);
  }
  friend bool operator==(const RemoteRegion&, const RemoteRegion&) = default;

 private:
  RemoteSlice whole_;
};

}  // namespace weightcast
