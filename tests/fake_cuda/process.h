#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/cuda/abi.h"
#include "fake_cuda/addresses.h"
#include "fake_cuda/config.h"
#include "fake_cuda/kernels.h"
#include "fake_cuda/link.h"

namespace weightcast::fake_cuda {

using namespace drivers;  // NOLINT: the driver's names are its own.

inline constexpr CUresult kOk = CUDA_SUCCESS;

struct Context {
  int device = 0;
  uint32_t references = 0;
  uint32_t peers = 0;  ///< Devices whose access was enabled.
  std::vector<uint64_t> default_streams;
};

/// Device memory at an address of this process.
struct Range {
  uint64_t length = 0;
  int device = 0;
  MemoryKind kind{};
  uint64_t id = 0;      ///< Of the buffer: never used again.
  uint64_t memory = 0;  ///< The machine's number.
  uint64_t types = 0;
  bool imported = false;
  bool rdma = true;     ///< Of cuMemMap only where its memory was made so.
  uint32_t opened = 0;  ///< Openings of a legacy handle.
  // Devices that may touch it. Of cuMemMap only; all may touch the rest.
  uint32_t readers = ~0U;
  uint32_t writers = ~0U;
};

struct Handle {
  uint64_t memory = 0;
  uint64_t length = 0;
  uint64_t types = 0;
  int device = 0;
  uint32_t references = 1;
  bool rdma = false;  ///< gpuDirectRDMACapable.
};

/// Host memory that the device reaches.
struct Pinned {
  uint64_t length = 0;
  int device = 0;
  uint64_t id = 0;
  bool allocated = false;
};

struct StreamObject {
  size_t slot = 0;
  int device = 0;
  bool is_default = false;
  bool captured = false;
  bool capture_void = false;
  uint64_t launches = 0;
};

struct EventObject {
  size_t slot = 0;
  int device = 0;
  uint64_t recorded = 0;
};

struct Module {
  int device = 0;
  std::vector<PtxEntry> entries;
};
struct Function {
  uint64_t module = 0;
  const PtxEntry* entry = nullptr;
  uint32_t kernel = 0;
};

/// Everything that libcuda knows in one process. `mutex` is the driver's lock: every call holds it.
struct Process {
  std::mutex mutex;
  std::mutex link_mutex;
  std::string config_text;  ///< Of fake_cuda_start; else FAKE_CUDA.
  std::atomic<bool> forked{false};
  std::atomic<uint64_t> disturbing{0};
  std::map<std::string, uint64_t> calls;

  std::unique_ptr<Link> link;  ///< Null before cuInit.
  Config config;
  std::vector<int> visible;
  std::map<int, Context> contexts;
  std::map<uint64_t, Range> ranges;
  std::map<uint64_t, uint64_t> reservations;
  std::map<uint64_t, Handle> handles;
  std::map<uint64_t, Pinned> pinned;
  std::map<uint64_t, StreamObject> streams;
  std::map<uint64_t, EventObject> events;
  std::map<uint64_t, Module> modules;
  std::map<uint64_t, Function> functions;
  uint64_t next_object = 0;
  uint64_t next_buffer = 1000;
  uint32_t next_batch = 1;
  uint64_t event_numbers[kEvents]{};
  std::vector<size_t> free_events;
  size_t used_events = 0;

  Reply Send(const Request& request, int* fd = nullptr);
  [[nodiscard]] bool inlined() const { return link->gpu_process() == 0; }
  [[nodiscard]] int GpuOf(int device) const { return visible[static_cast<size_t>(device)]; }
  /// -1: this process does not see it.
  [[nodiscard]] int DeviceOf(int gpu) const;
  [[nodiscard]] int LostOf(int device) const;
  [[nodiscard]] bool Reaches(int gpu, int other);
  /// Forgets what a lost context had.
  void DropDevice(int device);
  /// A number that no other object has ever had.
  uint64_t NewObject() { return 0x7FA0'0000'0000 + 16 * ++next_object; }
  [[nodiscard]] uint64_t Objects() const;
  /// Forgets everything, with the machine.
  void Reset();
};

Process& TheProcess();

/// The thread's own: contexts, innermost last, as numbers of devices.
struct Thread {
  std::vector<int> stack;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};
Thread& ThisThread();

enum CallFlags : unsigned {
  kPlain = 0,
  kNoContext = 1,   ///< Works without a context.
  kEvenIfLost = 2,  ///< Works when the context is lost.
  kBeforeInit = 4,  ///< Works before cuInit.
  kDisturbs = 8,    ///< Makes a capture void, in another mode than relaxed.
};

/// One call from beginning to end: lock, checks, faults. `result` other than 0: the call gives that.
class Call {
 public:
  Call(const char* name, unsigned flags);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] CUresult result() const { return result_; }
  /// The context's device.
  [[nodiscard]] int device() const { return device_; }
  [[noreturn]] void Wrong(const std::string& sentence) const { fake_cuda::Wrong(name_, sentence); }
  /// Ends the process unless the object exists and belongs to the context.
  StreamObject& Stream(CUstream stream);
  EventObject& Event(CUevent event);

  /// For a call that waits without the driver's lock.
  void Unlock() { lock_.unlock(); }

 private:
  CUresult CheckCapture();
  CUresult CheckFaults();

  const char* const name_;
  Process& process_;
  std::unique_lock<std::mutex> lock_;
  CUresult result_ = CUDA_SUCCESS;
  int device_ = -1;
};

// --- What several files need (process.cc, touch.cc, push.cc)
std::string Text(uint64_t address);
/// The range that holds this address; end(): none.
std::map<uint64_t, Range>::iterator FindRange(Process& process, uint64_t address);
std::map<uint64_t, Pinned>::iterator FindPinned(Process& process, uint64_t address);
/// Ends the process unless the device of `stream` may touch these bytes.
void CheckTouch(Call& call, Process& process, int device, uint64_t address, uint64_t length, bool write);
/// Ends the process where an operation that is not over touches these bytes.
void CheckUnused(Call& call, Process& process, uint64_t address, uint64_t length);
/// Into the stream; waits for room.
void Push(Call& call, Process& process, StreamObject& stream, Op op);
/// Waits for the GPU until `done`; inline it runs it.
void WaitFor(const Call& call, Process& process, const std::function<bool()>& done);
/// A stream of this device.
StreamObject MakeStream(Call& call, Process& process, int device);
/// PROT_NONE at the pages of these bytes, or nothing any more.
void ReserveAddresses(uint64_t address, uint64_t length);
void ReleaseAddresses(uint64_t address, uint64_t length);

}  // namespace weightcast::fake_cuda
