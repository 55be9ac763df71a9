#pragma once

#include <cstdint>

#include "drivers/cuda/abi.h"
#include "fake_cuda/fake_cuda.h"

/// What a client asks of the machine: a call where that is inline, else one message each way, with a
/// descriptor beside it where the comment says so.
namespace weightcast::fake_cuda {

enum class Ask : uint32_t {
  kHello,      ///< text: FAKE_CUDA. Gives a: the machine's pid, and the client's Area.
  kLeave,      ///< The client wants nothing more.
  kAlloc,      ///< gpu, a: length, b: kind of MemoryKind. Gives a: address, b: memory, and host memory's
               ///< descriptor.
  kFree,       ///< a: address.
  kReserve,    ///< a: length. Gives a: address.
  kUnreserve,  ///< a: address, b: length.
  kCreate,     ///< gpu, a: length, b: types of handle. Gives a: memory.
  kRelease,    ///< a: memory.
  kRetain,     ///< a: memory, which the client has mapped.
  kMap,        ///< a: address, b: memory.
  kUnmap,      ///< a: address.
  kAccess,     ///< a: address, b: 1 if the devices may touch it.
  kExport,     ///< a: memory. Gives a descriptor.
  kImport,     ///< A descriptor, or a: memory of a fabric handle. Gives a: memory, b: length, c: types, gpu.
  kDmaBuf,     ///< a: address, b: length, of whole pages that the client has mapped. Gives a descriptor.
  kShare,      ///< a: address of a legacy allocation. Gives a: memory.
  kOpen,       ///< gpu: whose context, a: memory. Gives a: address, b: length, gpu: whose memory.
  kClose,      ///< a: address.
  kMemInfo,    ///< gpu. Gives a: free, b: total.
  kHold,       ///< gpu, a: 1 hold, 0 release.
  kOrder,      ///< a: seed.
  kDelay,      ///< a: most_us.
  kPeer,       ///< gpu, a: the other, b: mode.
  kCanReach,   ///< gpu, a: the other. Gives a: mode.
  kLose,       ///< gpu, pid, a: error, b: pieces.
  kPieces,     ///< Gives a.
  kFault,      ///< pid, a: nth, b: result, c: block_ms, text: call.
  kUnblock,    ///< pid.
  kBlocked,    ///< pid. Gives a.
  kLive,       ///< pid. Gives live.
};

enum class MemoryKind : uint64_t { kLegacy, kHost, kManaged, kPooled, kCreated };

struct Request {
  Ask kind{};
  int32_t gpu = 0;
  int32_t pid = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  char text[512]{};
};

struct Reply {
  int32_t result = 0;
  int32_t gpu = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  FakeCudaLive live{};
};

}  // namespace weightcast::fake_cuda
