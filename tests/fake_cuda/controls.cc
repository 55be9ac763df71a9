// fake_cuda.h, all but its kinds of memory.
#include <unistd.h>

#include <cstring>
#include <string>

#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

/// A control works before cuInit too: it makes the machine.
Process& Joined() {
  Process& process = TheProcess();
  if (process.link == nullptr) Wrong("fake_cuda", "cuInit was not called");
  return process;
}

Reply Control(const Request& request) { return Joined().Send(request); }

int PidOf(int pid) { return pid == 0 ? getpid() : pid; }

void SetFault(int pid, const char* call, int nth, int result, int block_ms) {
  Request request{.kind = Ask::kFault,
                  .pid = PidOf(pid),
                  .a = static_cast<uint64_t>(nth),
                  .b = static_cast<uint64_t>(result),
                  .c = static_cast<uint64_t>(block_ms)};
  std::strncpy(request.text, call, sizeof request.text - 1);
  Control(request);
}

}  // namespace
}  // namespace weightcast::fake_cuda

using namespace weightcast::fake_cuda;  // NOLINT: this is its C side.

void fake_cuda_start(const char* config) {
  Process& process = TheProcess();
  const std::lock_guard lock(process.mutex);
  if (process.link != nullptr) Wrong("fake_cuda_start", "this process uses a machine already");
  process.config_text = config;
}

uint64_t fake_cuda_stop() {
  Process& process = TheProcess();
  const std::lock_guard lock(process.mutex);
  process.config_text.clear();
  if (process.link == nullptr) return 0;
  const uint64_t objects = process.Objects();
  process.Reset();
  process.disturbing = 0;
  return objects;
}

int fake_cuda_step(uint64_t seed) {
  Process& process = Joined();
  const std::lock_guard lock(process.mutex);
  if (seed != 0) process.Send({.kind = Ask::kOrder, .a = seed});
  return process.link->Step() ? 1 : 0;
}

int fake_cuda_gpu_process() { return Joined().link->gpu_process(); }

void fake_cuda_hold(int gpu) { Control({.kind = Ask::kHold, .gpu = gpu, .a = 1}); }
void fake_cuda_release(int gpu) { Control({.kind = Ask::kHold, .gpu = gpu, .a = 0}); }
void fake_cuda_seed(uint64_t seed) { Control({.kind = Ask::kOrder, .a = seed}); }
void fake_cuda_delay(uint32_t most_us) { Control({.kind = Ask::kDelay, .a = most_us}); }

void fake_cuda_peer(int from, int to, int mode) {
  Control(
      {.kind = Ask::kPeer, .gpu = from, .a = static_cast<uint64_t>(to), .b = static_cast<uint64_t>(mode)});
}

void fake_cuda_lose(int pid, int gpu, int error, uint64_t pieces) {
  Control(
      {.kind = Ask::kLose, .gpu = gpu, .pid = PidOf(pid), .a = static_cast<uint64_t>(error), .b = pieces});
}

uint64_t fake_cuda_pieces() { return Control({.kind = Ask::kPieces}).a; }

void fake_cuda_fail(int pid, const char* call, int nth, int result) { SetFault(pid, call, nth, result, 0); }
void fake_cuda_block(int pid, const char* call, int nth, int ms) { SetFault(pid, call, nth, 0, ms); }

void fake_cuda_unblock(int pid) { Control({.kind = Ask::kUnblock, .pid = PidOf(pid)}); }

int fake_cuda_blocked(int pid) {
  if (PidOf(pid) == getpid()) return static_cast<int>(Joined().link->area().blocked.load());
  return static_cast<int>(Control({.kind = Ask::kBlocked, .pid = pid}).a);
}

uint64_t fake_cuda_calls(const char* call) {
  Process& process = TheProcess();
  const std::lock_guard lock(process.mutex);
  if (call != nullptr) return process.calls[call];
  uint64_t all = 0;
  for (const auto& [name, count] : process.calls) all += count;
  return all;
}

uint64_t fake_cuda_disturbing() { return TheProcess().disturbing; }

int fake_cuda_capture(weightcast::drivers::CUstream stream, int on) {
  Call call(on != 0 ? "cuStreamBeginCapture" : "cuStreamEndCapture", kPlain);
  if (call.result() != CUDA_SUCCESS) return call.result();
  StreamObject& found = call.Stream(stream);
  const bool spoilt = found.capture_void;
  found.captured = on != 0;
  found.capture_void = false;
  return on == 0 && spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

FakeCudaLive fake_cuda_live(int pid) {
  Process& process = Joined();
  FakeCudaLive live = process.Send({.kind = Ask::kLive, .pid = pid < 0 ? -1 : PidOf(pid)}).live;
  if (pid < 0 || PidOf(pid) != getpid()) return live;
  const std::lock_guard lock(process.mutex);
  live.contexts = process.contexts.size();
  live.reservations = process.reservations.size();
  live.handles = process.handles.size();
  live.events = process.events.size();
  live.pinned = process.pinned.size();
  live.modules = process.modules.size();
  return live;
}
