#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/types.h"

/// What two processes share, byte for byte; docs/wire.md, section "shm", tells the protocol.
namespace weightcast::transport::shm {

/// Everything shared is a 64-bit word: tearing cannot happen, and hostile values are only values.
using Word = std::atomic<uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 8);

inline constexpr size_t kLine = 64;
inline constexpr uint32_t kRecords = 512;            ///< Of one inbox; a power of two.
inline constexpr uint64_t kPayloadBytes = 1U << 20;  ///< Of one payload ring.
inline constexpr uint32_t kMaxRegions = 1U << 18;    ///< Registered at once by one transport object.
/// Inbox::grant[0] while the link is open: what the standing grant (slot 0, id 0) is checked against.
inline constexpr uint64_t kStandingOpen = 1;

/// One line. `sequence` is written last and is the record's position + 1: so one line carries both
/// the bytes and the report that they are there.
struct alignas(kLine) Record {
  std::array<Word, 7> body;
  Word sequence;
};
static_assert(sizeof(Record) == kLine);

/// Why a sleeper wants to be rung: bits of Inbox::wake.
inline constexpr uint64_t kWakeRecords = 1;  ///< A record has arrived.
inline constexpr uint64_t kWakeSpace = 2;    ///< Room in the peer's inbox or payload ring.
inline constexpr uint64_t kWakeFence = 4;    ///< The peer's busy word is even again.

/// One direction of a link. The target owns it; the writer maps it.
struct Inbox {
  // Written by the owner.
  alignas(kLine) std::array<Word, kGrantSlots> grant;  ///< Open grant of each slot, or 0.
  alignas(kLine) Word wake;                            ///< Also cleared by the peer that rings.
  alignas(kLine) Word records_taken;
  Word payload_taken;
  Word staged_taken;
  alignas(kLine) Word trial_nonce;
  /// 1 while the peer may pull from the owner's memory on this link: a copy counts only if this stood here,
  /// and the source's generation in the fence page, when the copy was over.
  Word source_open;
  // Written by the peer.
  alignas(kLine) Word busy;  ///< Odd while the peer touches the owner's regions.
  alignas(kLine) Word trial_echo;
  /// How many batches of copies the peer's devices have begun into the owner's regions, and how many are
  /// over.
  alignas(kLine) Word device_begun;
  Word device_ended;
  std::array<Record, kRecords> records;
};

/// Of one transport object; its peers map it for reading.
struct FencePage {
  /// The live generation of each region, else 0.
  std::array<std::atomic<uint32_t>, kMaxRegions> generation;
  /// How many peers have a grant here: that many processors can write.
  alignas(kLine) Word writers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace weightcast::transport::shm
