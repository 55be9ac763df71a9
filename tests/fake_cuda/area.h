#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "drivers/cuda/abi.h"

/// Memory that a client shares with the GPU: its streams, the state of its events, and what the GPU tells it.
/// Anonymous memory of one process where the machine is inline.
namespace weightcast::fake_cuda {

inline constexpr int kMaxGpus = 16;
inline constexpr size_t kStreams = 48;
inline constexpr size_t kEvents = 4096;
inline constexpr uint64_t kDepth =
    1024;  ///< Operations of a stream that are not over; a call waits for room.
inline constexpr uint64_t kLaunches = 32;    ///< The same of kernels.
inline constexpr size_t kParameters = 4096;  ///< Bytes of a kernel's parameters.
inline constexpr uint64_t kPiece = 4096;
inline constexpr size_t kFaults = 16;

enum class OpKind : uint32_t { kCopy, kSet, kWriteValue, kRecord, kWait, kKernel };

struct Op {
  OpKind kind{};
  uint32_t batch = 0;  ///< Neighbours of one number other than 0 run in any order.
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t length = 0;
  uint64_t value = 0;   ///< To set or write; the number of a record or wait.
  uint32_t slot = 0;    ///< Of an event; of a kernel's parameters.
  uint32_t kernel = 0;  ///< Number of the kernel.
  uint32_t grid[3]{};
  uint32_t block[3]{};
  uint64_t done = 0;  ///< Pieces; the GPU's.
};

enum class StreamState : uint32_t { kFree, kLive, kClosing };

struct Ring {
  std::atomic<StreamState> state{StreamState::kFree};
  int32_t gpu = 0;
  std::atomic<uint64_t> tail{0};      ///< Ops begun by the client.
  std::atomic<uint64_t> head{0};      ///< Ops over.
  std::atomic<uint64_t> launched{0};  ///< Kernels over.
  Op ops[kDepth];
  std::byte parameters[kLaunches][kParameters];
};

/// The n-th call of a name from now on fails or blocks.
struct Fault {
  std::atomic<uint32_t> armed{0};
  int32_t nth = 0;
  int32_t result = 0;
  int32_t block_ms = 0;
  char call[52]{};
};

struct Area {
  std::atomic<uint32_t> asleep{0};        ///< The GPU wants to be rung for.
  std::atomic<uint32_t> progress{0};      ///< Futex: something is over.
  std::atomic<uint32_t> blocked{0};       ///< Calls that block just now by a fault.
  std::atomic<uint32_t> unblocked{0};     ///< Futex: they shall go on.
  std::atomic<int32_t> lost[kMaxGpus]{};  ///< The error of a context that is lost.
  std::atomic<uint64_t> recorded[kEvents]{};
  Fault faults[kFaults];
  Ring rings[kStreams];
};

}  // namespace weightcast::fake_cuda
