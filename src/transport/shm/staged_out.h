#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/fd.h"
#include "device/devices.h"
#include "transport/ring.h"
#include "transport/shm/channel.h"
#include "transport/shm/context.h"
#include "transport/shm/copy_batch.h"
#include "transport/shm/messages.h"
#include "transport/shm/outbox.h"
#include "transport/shm/records.h"
#include "transport/shm/stage_ring.h"

namespace weightcast::transport::shm {

/// The bytes that this side brings into the peer's staging ring, of its writes and of the peer's reads, and
/// the records that tell of them: each goes out when its bytes are there, in the order of beginning. The
/// holder of progress alone; no driver call.
class StagedOut {
 public:
  enum class State : uint8_t {
    kWaits,  ///< For the ring or the pin.
    kReady,
    kFailed,  ///< For good: failure().
  };

  StagedOut(Context& context, Outbox& outbox, device::Engines& engines, Channel& channel);

  /// Whether bytes can be brought by `device`, or by this processor (null). Asked first, it has the ring made
  /// and pinned.
  State Ready(const device::Device* device);
  [[nodiscard]] Code failure() const { return failure_; }
  Status OnStage(const StageReply& reply, std::span<const UniqueFd> fds);

  /// Most bytes of the next piece that `device`, or this processor, brings. Call when ready.
  [[nodiscard]] uint64_t Most(const device::Device* device) const;
  /// Begins to bring `size` bytes and returns their position; nullopt: no room now. Announce follows.
  std::optional<uint64_t> Bring(const device::Device* device, const std::byte* from, uint64_t size);
  /// The record of what was brought last, and the signal behind it.
  template <typename T>
  void Announce(const T& record) {
    Newest().record = Pack(record);
  }
  void AnnounceSignal(const SignalRecord& signal) {
    Newest().signal = Pack(signal);
    Newest().has_signal = true;
  }
  /// A record without bytes, after those before it. Only while there is room.
  template <typename T>
  void Add(const T& record) {
    Push().record = Pack(record);
  }
  [[nodiscard]] bool HasRoom() const { return !pieces_.full(); }

  /// Has the copies begun that were gathered, and sends the records that are due. At the end of each look at
  /// what can be brought. True if anything was sent.
  bool Flush();
  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  /// The peer wrote nonsense into its counter.
  [[nodiscard]] bool broken() const { return broken_; }
  [[nodiscard]] bool made() const { return ring_ != nullptr; }
  [[nodiscard]] Status health() const { return ring_ == nullptr ? Status::Ok() : ring_->failure(); }

 private:
  static constexpr size_t kMostPieces = 256;
  /// This processor copies these at once.
  static constexpr uint64_t kHostPiece = 256 * 1024;
  /// Where a piece begins: copy engines are slow at odd addresses.
  static constexpr uint64_t kAlignment = 64;

  struct Piece {
    RecordBody record{};
    RecordBody signal{};
    bool has_signal = false;
    const device::Engine* engine = nullptr;  ///< That brings it; null: it is there.
    uint64_t ticket = 0;
  };

  void Ask();
  [[nodiscard]] std::optional<uint64_t> Reserve(uint64_t size);
  Piece& Push() { return pieces_.Push() = Piece{}; }
  Piece& Newest() { return pieces_[pieces_.tail() - 1]; }

  Context* context_;
  Outbox* outbox_;
  device::Engines* engines_;
  Channel* channel_;
  std::optional<uint64_t> asked_;  ///< The length that the peer was asked for.
  uint64_t budgeted_ = 0;          ///< Of it, while the answer is awaited.
  Code failure_ = Code::kOk;
  std::unique_ptr<StageRing> ring_;
  uint64_t next_ = 0;  ///< Position after the newest piece.
  uint64_t seen_ = 0;  ///< Last valid value of the peer's staged_taken.
  bool broken_ = false;
  Ring<Piece> pieces_{kMostPieces};
  CopyBatch batch_;
};

}  // namespace weightcast::transport::shm
