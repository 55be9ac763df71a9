#include "fake_cuda/process.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace weightcast::fake_cuda {
namespace {

constexpr uint64_t kPage = 4096;

uint64_t PageOf(uint64_t address) { return address / kPage * kPage; }
uint64_t PagesOf(uint64_t address, uint64_t length) {
  return RoundUp(address + length, kPage) - PageOf(address);
}

void Block(Area& area, int ms) {
  const uint32_t seen = area.unblocked.load(std::memory_order_seq_cst);
  ++area.blocked;
  const timespec limit{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000L};
  while (area.unblocked.load(std::memory_order_seq_cst) == seen) {
    if (syscall(SYS_futex, &area.unblocked, FUTEX_WAIT, seen, &limit, nullptr, 0) != 0 &&
        errno == ETIMEDOUT) {
      break;
    }
  }
  --area.blocked;
}

}  // namespace

Process& TheProcess() {
  static auto* const process = new Process;  // Outlives every thread.
  return *process;
}

Thread& ThisThread() {
  thread_local Thread thread;
  return thread;
}

Reply Process::Send(const Request& request, int* fd) {
  const std::lock_guard lock(link_mutex);
  return link->Send(request, fd);
}

int Process::DeviceOf(int gpu) const {
  for (size_t i = 0; i < visible.size(); ++i) {
    if (visible[i] == gpu) return static_cast<int>(i);
  }
  return -1;
}

int Process::LostOf(int device) const {
  return device < 0 ? 0 : link->area().lost[GpuOf(device)].load(std::memory_order_seq_cst);
}

bool Process::Reaches(int gpu, int other) {
  const Reply reply = Send({.kind = Ask::kCanReach, .gpu = gpu, .a = static_cast<uint64_t>(other)});
  return static_cast<Peer>(reply.a) != Peer::kRefused;
}

void Process::DropDevice(int device) {
  const auto mine = [&](const auto& each) { return each.second.device == device; };
  for (const auto& [number, stream] : streams) {
    if (stream.device == device) link->area().rings[stream.slot].state.store(StreamState::kClosing);
  }
  for (const auto& [address, range] : ranges) {
    if (range.device != device || range.kind == MemoryKind::kCreated) continue;
    Send({.kind = range.imported ? Ask::kClose : Ask::kFree, .a = address});
    ReleaseAddresses(address, range.length);
  }
  std::erase_if(streams, mine);
  std::erase_if(events, mine);
  std::erase_if(modules, mine);
  std::erase_if(ranges,
                [&](const auto& each) { return mine(each) && each.second.kind != MemoryKind::kCreated; });
  for (const auto& [address, memory] : pinned) {
    if (memory.device != device || !memory.allocated) continue;
    Send({.kind = Ask::kFree, .a = address});
    ReleaseAddresses(address, memory.length);
  }
  std::erase_if(pinned, mine);
}

uint64_t Process::Objects() const {
  uint64_t objects = contexts.size() + ranges.size() + reservations.size() + handles.size() + pinned.size() +
                     events.size() + modules.size();
  for (const auto& [number, stream] : streams) objects += stream.is_default ? 0 : 1;
  return objects;
}

void Process::Reset() {
  for (const auto& [address, length] : reservations) UnmapAt(address, length);
  for (const auto& [address, range] : ranges) {
    if (range.kind != MemoryKind::kCreated) ReleaseAddresses(address, range.length);
  }
  for (const auto& [address, memory] : pinned) {
    if (memory.allocated) ReleaseAddresses(address, memory.length);
  }
  link.reset();
  contexts.clear();
  ranges.clear();
  reservations.clear();
  handles.clear();
  pinned.clear();
  streams.clear();
  events.clear();
  modules.clear();
  functions.clear();
  calls.clear();
  free_events.clear();
  used_events = 0;
  std::memset(event_numbers, 0, sizeof event_numbers);
}

// --- Calls

Call::Call(const char* name, unsigned flags) : name_(name), process_(TheProcess()) {
  if (process_.forked) Wrong("called in a child after fork(): CUDA works in the parent only");
  lock_ = std::unique_lock(process_.mutex);
  ++process_.calls[name];
  if (process_.link == nullptr) {
    if ((flags & kBeforeInit) == 0) result_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  const Thread& thread = ThisThread();
  if (!thread.stack.empty()) device_ = thread.stack.back();
  if ((flags & (kNoContext | kBeforeInit)) == 0) {
    if (device_ < 0) Wrong("called without a context");
    if (!process_.contexts.contains(device_)) Wrong("the current context was released");
  }
  if ((flags & kDisturbs) != 0) result_ = CheckCapture();
  if (result_ == CUDA_SUCCESS) result_ = CheckFaults();
  if (result_ == CUDA_SUCCESS && (flags & (kEvenIfLost | kBeforeInit)) == 0) {
    result_ = process_.LostOf(device_);
  }
}

CUresult Call::CheckCapture() {
  if (ThisThread().mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  ++process_.disturbing;
  CUresult result = CUDA_SUCCESS;
  for (auto& [number, stream] : process_.streams) {
    if (!stream.captured) continue;
    stream.capture_void = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Call::CheckFaults() {
  Area& area = process_.link->area();
  CUresult result = CUDA_SUCCESS;
  for (Fault& fault : area.faults) {
    if (fault.armed.load(std::memory_order_acquire) == 0 || std::strcmp(fault.call, name_) != 0) continue;
    if (--fault.nth > 0) continue;
    if (fault.result != CUDA_SUCCESS) result = fault.result;
    const int block_ms = fault.block_ms;
    fault.armed.store(0, std::memory_order_release);
    if (block_ms > 0) Block(area, block_ms);
  }
  return result;
}

// The default streams are the context's: 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
StreamObject& Call::Stream(CUstream stream) {
  auto number = reinterpret_cast<uint64_t>(stream);
  if (number <= 2) {
    if (device_ < 0) Wrong("a default stream needs a context");
    auto& defaults = process_.contexts.at(device_).default_streams;
    if (defaults.empty()) {
      StreamObject made = MakeStream(*this, process_, device_);
      made.is_default = true;
      defaults.push_back(process_.NewObject());
      process_.streams[defaults.front()] = made;
    }
    number = defaults.front();
  }
  const auto found = process_.streams.find(number);
  if (found == process_.streams.end()) Wrong("the stream was destroyed, or never was one");
  if (found->second.device != device_) Wrong("the stream is of another context than the current one");
  return found->second;
}

EventObject& Call::Event(CUevent event) {
  const auto found = process_.events.find(reinterpret_cast<uint64_t>(event));
  if (found == process_.events.end()) Wrong("the event was destroyed, or never was one");
  if (found->second.device != device_) Wrong("the event is of another context than the current one");
  return found->second;
}

std::string Text(uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

void ReserveAddresses(uint64_t address, uint64_t length) {
  MapAt(PageOf(address), PagesOf(address, length), PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1);
}

void ReleaseAddresses(uint64_t address, uint64_t length) {
  UnmapAt(PageOf(address), PagesOf(address, length));
}

}  // namespace weightcast::fake_cuda
