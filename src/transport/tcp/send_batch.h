#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/tcp/frame.h"
#include "transport/tcp/local_region.h"

namespace weightcast::transport::tcp {

/// Largest piece of a read's data from host memory: what a peer's region may still give after it was
/// deregistered, as zeros.
inline constexpr uint64_t kDataPiece = 256U << 10;

/// Frames and payloads on their way into a socket with few system calls. Payloads are sent from
/// where they lie.
class SendBatch {
 public:
  [[nodiscard]] bool empty() const { return next_iov_ == iov_count_; }
  /// No room for another frame with payload, or enough bytes to keep the socket busy.
  [[nodiscard]] bool full() const { return frame_count_ + 2 > kFrames || bytes_ >= kBytes; }
  void Add(const Frame& frame);
  /// After its frame. `served`: a region that a peer reads and that may be deregistered meanwhile.
  void AddPayload(std::byte* bytes, uint64_t length, const LocalRegion* served);

  enum class Outcome : uint8_t { kSent, kBlocked, kFailed };
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  /// kSent: all is out, it is empty. kBlocked: the socket took less. kFailed: errno. alone: little else
  /// is under way.
  Outcome Send(int socket, bool alone);
  /// Takes no more bytes from this region: the peer gets as many zeros.
  void Forget(const LocalRegion& region);

 private:
  void Advance(size_t sent);

  static constexpr size_t kFrames = 32;
  static constexpr size_t kBytes = 512U << 10;
  static constexpr size_t kCall = 256U << 10;  ///< Bytes of one system call, of what goes alone …
  static constexpr size_t kSlack = 64U << 10;  ///< … or so many more, rather than a call for little.
  std::array<std::array<std::byte, kMaxFrameSize>, kFrames> frames_;
  std::array<iovec, 2 * kFrames> iov_;
  std::array<const LocalRegion*, 2 * kFrames> served_;
  size_t frame_count_ = 0;
  size_t iov_count_ = 0;
  size_t next_iov_ = 0;
  uint64_t bytes_ = 0;  ///< Not sent yet.
};

}  // namespace weightcast::transport::tcp
