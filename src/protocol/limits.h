#pragma once

#include <cstddef>
#include <cstdint>

/// What a message may hold. Decoders refuse more (kProtocol, naming the field); encoders never make more of
/// what has passed the planner.
namespace weightcast::protocol {

inline constexpr size_t kMaxNameBytes = 256;  ///< Job, model, engine, host, address, label of a version.
inline constexpr size_t kSecretBytes = 32;    ///< Of a worker's secret, and of the key of a pair.
inline constexpr size_t kMaxTensorNameBytes = 1024;
inline constexpr size_t kMaxDims = 8;
inline constexpr size_t kMaxShards = size_t{1} << 22;
inline constexpr size_t kMaxPatterns = 4096;
inline constexpr uint32_t kMaxParts = 4096;  ///< Of an update.
inline constexpr size_t kMaxRulesBytes = size_t{16} << 20;
inline constexpr size_t kMaxAddresses = 64;
inline constexpr size_t kMaxRegions = size_t{1} << 16;
inline constexpr size_t kMaxDescriptorBytes = size_t{64} << 10;
inline constexpr size_t kMaxPathBytes = 4096;
inline constexpr size_t kMaxStatusBytes = size_t{16} << 10;
inline constexpr size_t kMaxWorkers = size_t{1} << 20;  ///< Peers, grants, outcomes, views.
inline constexpr size_t kMaxDoneRows = 32;              ///< Senders, ranks and routes that a Done lists.
inline constexpr size_t kMaxConnectionBytes = 1024;     ///< What is told of a connection.
inline constexpr size_t kMaxModels = 256;
inline constexpr size_t kMaxSpans = 4096;  ///< That a worker tells of one update.
/// Of a term. They are counted upwards from what workers tell.
inline constexpr uint64_t kMaxTerm = uint64_t{1} << 48;
/// By how much one worker may raise the term of a controller: nobody counts to the end in a few steps.
inline constexpr uint64_t kMaxTermJump = uint64_t{1} << 16;
/// Of the run that a worker tells of. Runs are counted upwards from what workers tell: one at the end of the
/// numbers would leave none.
inline constexpr uint64_t kMaxRun = uint64_t{1} << 48;
/// Of versions: nanoseconds since 1970 fit.
inline constexpr int64_t kMaxVersionNumber = int64_t{1} << 62;
/// A whole message after its pieces have been put together: a routing table and what travels with it.
inline constexpr size_t kMaxMessageBytes = size_t{320} << 20;
/// A message larger than this is cut into pieces.
inline constexpr size_t kMaxWholeBytes = size_t{256} << 10;

}  // namespace weightcast::protocol
