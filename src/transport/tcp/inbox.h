#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "transport/tcp/frame.h"

namespace weightcast::transport::tcp {

/// Takes a payload that cannot be received into its place.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;
  /// Where the payload's next bytes go; empty: none for now.
  virtual std::span<std::byte> Room() = 0;
  /// That many bytes of the room have been received.
  virtual void Filled(size_t bytes) = 0;
};

/// What becomes of a frame. A payload with neither place nor sink goes to nothing.
struct Verdict {
  std::string_view violation{};  ///< Not empty: it breaks the protocol, the lane ends.
  std::byte* place = nullptr;    ///< Where its payload goes.
  PayloadSink* sink = nullptr;   ///< Or who takes it.
};

/// Who decides about frames.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  /// A frame is here, its payload (if it has one) is not.
  virtual Verdict OnFrame(const Frame& frame) = 0;
  /// Its payload has been received. Not empty: a violation. Called for write and data frames alone.
  virtual std::string_view OnPayload(const Frame& frame) = 0;
  /// No frame is begun while this holds: nobody takes the events that it would make.
  [[nodiscard]] virtual bool Paused() const = 0;
};

/// The receiving half of a lane: cuts the stream into frames and receives payloads into their places.
class Inbox {
 public:
  enum class Outcome : uint8_t {
    kEmpty,      ///< The socket has no more for now.
    kMore,       ///< It may have more: the budget is used up, or the handler pauses.
    kStalled,    ///< The sink has no room for now.
    kClosed,     ///< The peer has closed it.
    kFailed,     ///< errno.
    kViolation,  ///< violation() says which.
  };
  /// Receives about `budget` bytes at most.
  Outcome Receive(int socket, size_t budget, FrameHandler& handler);
  /// Bytes since the beginning.
  [[nodiscard]] uint64_t received() const { return received_; }
  [[nodiscard]] std::string_view violation() const { return violation_; }

  /// The frame whose payload is being received, or nullptr.
  [[nodiscard]] const Frame* in_payload() const { return in_payload_ ? &frame_ : nullptr; }
  /// The rest of that payload goes to nothing.
  void Divert() {
    place_ = nullptr;
    sink_ = nullptr;
  }

 private:
  bool TakeBuffered(FrameHandler& handler);
  void TakePayload();
  void Fill(size_t bytes);
  [[nodiscard]] std::span<std::byte> Place();
  bool TakeFrame(FrameHandler& handler);
  bool EndPayload(FrameHandler& handler);
  struct Received {
    ssize_t got = 0;
    size_t asked = 0;
  };
  [[nodiscard]] Received ReceiveSome(int socket, size_t budget);
  void Account(size_t received);
  void Violate(std::string_view what) { violation_ = what; }

  /// Enough for a hundred small frames at once; what of a large payload lands here is copied, at most 1%.
  static constexpr size_t kBuffer = 8U << 10;
  std::array<std::byte, kBuffer> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  uint64_t received_ = 0;
  Frame frame_;
  bool in_payload_ = false;
  std::byte* place_ = nullptr;
  PayloadSink* sink_ = nullptr;
  uint64_t left_ = 0;
  std::string_view violation_;
};

}  // namespace weightcast::transport::tcp
