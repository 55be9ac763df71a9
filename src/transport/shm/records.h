#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "transport/shm/layout.h"

/// What travels in an inbox. Every record comes from another process: it is copied out first, then
/// each field is checked before it is used.
namespace weightcast::transport::shm {

enum class RecordKind : uint8_t { kSignal = 1, kPut = 2, kAnswer = 3, kGet = 4, kData = 5, kPull = 6 };
using RecordBody = std::array<uint64_t, 7>;

/// A signal. `after_put`: it belongs to the put before it and counts only if that landed.
struct SignalRecord {
  RecordKind kind = RecordKind::kSignal;
  uint8_t after_put = 0;
  uint16_t slot = 0;
  uint32_t transfer = 0;
  uint64_t grant = 0;
  uint32_t chunk = 0;
  uint32_t chunks = 0;
  uint64_t checksum = 0;
};

inline SignalRecord SignalOf(const Signal& signal, bool after_put = false) {
  return {.after_put = static_cast<uint8_t>(after_put),
          .slot = static_cast<uint16_t>(signal.grant.slot),
          .transfer = signal.transfer,
          .grant = signal.grant.id,
          .chunk = signal.chunk,
          .chunks = signal.chunks,
          .checksum = signal.checksum};
}

/// Flags of PutRecord, PullRecord, GetRecord and DataRecord.
inline constexpr uint8_t kLastPiece = 1;  ///< Of its operation.
inline constexpr uint8_t kSignalled = 2;  ///< A SignalRecord follows.
inline constexpr uint8_t kNewScope = 4;   ///< First write since the last signal of its grant's slot.
inline constexpr uint8_t kAbandoned = 8;  ///< The rest of the operation does not come.
inline constexpr uint8_t kInStage = 16;   ///< The bytes lie, or a get's are to lie, in the staging ring.
inline constexpr uint8_t kFromHost = 32;  ///< Of a pull: the source is host memory, and so is the target.

/// Writer to target: `length` bytes in the target's payload ring, to be copied into place there.
struct PutRecord {
  RecordKind kind = RecordKind::kPut;
  uint8_t flags = 0;
  uint16_t slot = 0;
  uint32_t length = 0;
  uint64_t grant = 0;
  uint32_t region = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;
  uint64_t position = 0;
  uint64_t sequence = 0;  ///< Of the operation.
};

/// Writer to target: an order to copy `length` bytes from a source of the writer's, which the target's device
/// or, with kFromHost, its processor reads, into place. Answered as a put.
struct PullRecord {
  RecordKind kind = RecordKind::kPull;
  uint8_t flags = 0;
  uint16_t slot = 0;
  uint32_t length = 0;
  uint64_t grant = 0;
  uint32_t region = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;
  uint32_t source = 0;
  uint32_t source_generation = 0;
  uint64_t source_offset = 0;  ///< In the source; with kFromHost the address in the writer.
  uint64_t sequence = 0;       ///< Of the operation.
};
static_assert(sizeof(PullRecord) == sizeof(RecordBody));
/// Most bytes of one pull record.
inline constexpr uint64_t kLongestPull = uint64_t{1} << 30;

/// Target to writer: every put before `sequence` that has no answer yet went well; this one as `code` says.
struct AnswerRecord {
  RecordKind kind = RecordKind::kAnswer;
  uint8_t code = 0;
  uint8_t reserved[6] = {};
  uint64_t sequence = 0;
};

/// Reader to owner.
struct GetRecord {
  RecordKind kind = RecordKind::kGet;
  uint8_t flags = 0;
  uint8_t reserved[6] = {};
  uint32_t region = 0;
  uint32_t generation = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t sequence = 0;
};

/// Owner to reader: the next piece of what a get asked for, or the reason why there is none.
struct DataRecord {
  RecordKind kind = RecordKind::kData;
  uint8_t flags = 0;
  uint8_t code = 0;
  uint8_t reserved = 0;
  uint32_t length = 0;
  uint64_t position = 0;
  uint64_t sequence = 0;
};

inline RecordKind KindOf(const RecordBody& body) {
  uint8_t kind = 0;
  std::memcpy(&kind, body.data(), 1);
  return static_cast<RecordKind>(kind);
}

template <typename T>
RecordBody Pack(const T& record) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(RecordBody));
  RecordBody body{};
  std::memcpy(body.data(), &record, sizeof record);
  return body;
}

template <typename T>
T Unpack(const RecordBody& body) {
  T record;
  std::memcpy(static_cast<void*>(&record), body.data(), sizeof record);
  return record;
}

}  // namespace weightcast::transport::shm
