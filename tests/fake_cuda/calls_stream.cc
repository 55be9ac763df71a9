// Streams, events and what runs in them.
#include <algorithm>
#include <vector>

#include "fake_cuda/calls.h"
#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

uint64_t RecordedOf(Process& process, const EventObject& event) {
  return process.link->area().recorded[event.slot].load(std::memory_order_seq_cst);
}

void CheckCopy(Call& call, Process& process, int device, uint64_t to, uint64_t from, uint64_t length) {
  CheckTouch(call, process, device, from, length, false);
  CheckTouch(call, process, device, to, length, true);
}

struct Piece {
  uint64_t begin;
  uint64_t end;
  auto operator<=>(const Piece&) const = default;
};

/// The order inside a batch is free: no target may meet another target, or a source.
void CheckDisjoint(Call& call, const CUdeviceptr* to, const CUdeviceptr* from, const size_t* lengths,
                   size_t count) {
  std::vector<Piece> targets;
  for (size_t i = 0; i < count; ++i) targets.push_back({to[i], to[i] + lengths[i]});
  std::ranges::sort(targets);
  for (size_t i = 1; i < count; ++i) {
    if (targets[i].begin < targets[i - 1].end) call.Wrong("two copies of the batch write the same bytes");
  }
  for (size_t i = 0; i < count; ++i) {
    const auto after = std::ranges::lower_bound(targets, from[i] + lengths[i], {}, &Piece::begin);
    if (after != targets.begin() && std::prev(after)->end > from[i]) {
      call.Wrong("a copy of the batch reads what another one writes");
    }
  }
}

CUresult CopyBatch(const CUdeviceptr* to, const CUdeviceptr* from, const size_t* lengths, size_t count,
                   const CUmemcpyAttributes* attributes, const size_t* firsts, size_t attribute_count,
                   CUstream stream) {
  Call call("cuMemcpyBatchAsync", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (reinterpret_cast<uint64_t>(stream) <= 2) call.Wrong("a batch cannot run in a default stream");
  StreamObject& target = call.Stream(stream);
  if (count == 0 || attribute_count == 0 || attribute_count > count || firsts[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < attribute_count; ++i) {
    if (attributes[i].srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
        attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    if (lengths[i] == 0) call.Wrong("a copy of the batch has no bytes");
    CheckCopy(call, process, call.device(), to[i], from[i], lengths[i]);
  }
  CheckDisjoint(call, to, from, lengths, count);
  const uint32_t batch = process.next_batch++;
  for (size_t i = 0; i < count; ++i) {
    Push(call, process, target,
         {.kind = OpKind::kCopy, .batch = batch, .to = to[i], .from = from[i], .length = lengths[i]});
  }
  return kOk;
}

}  // namespace
}  // namespace weightcast::fake_cuda

namespace weightcast::drivers {
using namespace fake_cuda;  // NOLINT: this is its C side.
extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  Call call("cuStreamCreateWithPriority", kPlain);
  if (call.result() != kOk) return call.result();
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  Process& process = TheProcess();
  const uint64_t number = process.NewObject();
  process.streams[number] = MakeStream(call, process, call.device());
  *stream = reinterpret_cast<CUstream>(number);
  return kOk;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  Call call("cuStreamDestroy", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const StreamObject& found = call.Stream(stream);
  if (found.is_default) call.Wrong("a default stream cannot be destroyed");
  if (found.captured) call.Wrong("the stream is being captured");
  process.link->area().rings[found.slot].state.store(StreamState::kClosing, std::memory_order_seq_cst);
  process.streams.erase(reinterpret_cast<uint64_t>(stream));
  const std::lock_guard lock(process.link_mutex);
  process.link->Bell();
  return kOk;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  Call call("cuStreamIsCapturing", kPlain);
  if (call.result() != kOk) return call.result();
  const StreamObject& found = call.Stream(stream);
  *status = !found.captured      ? CU_STREAM_CAPTURE_STATUS_NONE
            : found.capture_void ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return kOk;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  Call call("cuStreamWaitEvent", kPlain);
  if (call.result() != kOk) return call.result();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Process& process = TheProcess();
  const auto found = process.events.find(reinterpret_cast<uint64_t>(event));
  if (found == process.events.end()) call.Wrong("the event was destroyed, or never was one");
  Push(call, process, call.Stream(stream),
       {.kind = OpKind::kWait,
        .value = found->second.recorded,
        .slot = static_cast<uint32_t>(found->second.slot)});
  return kOk;
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags) {
  Call call("cuStreamWriteValue64", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  if (!process.config.writes) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != CU_STREAM_WRITE_VALUE_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  if (address % sizeof value != 0) call.Wrong(Text(address) + " is no multiple of 8");
  StreamObject& target = call.Stream(stream);
  CheckTouch(call, process, call.device(), address, sizeof value, true);
  Push(call, process, target, {.kind = OpKind::kWriteValue, .to = address, .value = value});
  return kOk;
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  Call call("cuEventCreate", kPlain);
  if (call.result() != kOk) return call.result();
  constexpr unsigned int kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  Process& process = TheProcess();
  size_t slot = process.used_events;
  if (!process.free_events.empty()) {
    slot = process.free_events.back();
    process.free_events.pop_back();
  } else if (++process.used_events > kEvents) {
    call.Wrong("more than " + std::to_string(kEvents) + " events in one process");
  }
  const uint64_t number = process.NewObject();
  process.events[number] = {.slot = slot, .device = call.device()};
  *event = reinterpret_cast<CUevent>(number);
  return kOk;
}

CUresult cuEventDestroy_v2(CUevent event) {
  Call call("cuEventDestroy", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  process.free_events.push_back(call.Event(event).slot);
  process.events.erase(reinterpret_cast<uint64_t>(event));
  return kOk;
}

// Numbers of a slot only grow, also from one event to the next: late ones do no harm.
CUresult cuEventRecord(CUevent event, CUstream stream) {
  Call call("cuEventRecord", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  EventObject& target = call.Event(event);
  StreamObject& from = call.Stream(stream);
  target.recorded = ++process.event_numbers[target.slot];
  Push(call, process, from,
       {.kind = OpKind::kRecord, .value = target.recorded, .slot = static_cast<uint32_t>(target.slot)});
  return kOk;
}

CUresult cuEventQuery(CUevent event) {
  Call call("cuEventQuery", kDisturbs);
  if (call.result() != kOk) return call.result();
  const EventObject& asked = call.Event(event);
  return RecordedOf(TheProcess(), asked) >= asked.recorded ? kOk : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  Call call("cuEventSynchronize", kDisturbs);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  const EventObject asked = call.Event(event);
  if (!process.inlined()) call.Unlock();
  WaitFor(call, process,
          [&] { return RecordedOf(process, asked) >= asked.recorded || process.LostOf(asked.device) != 0; });
  return process.LostOf(asked.device);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t length, CUstream stream) {
  Call call("cuMemcpyAsync", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  StreamObject& target = call.Stream(stream);
  if (length == 0) return kOk;
  CheckCopy(call, process, call.device(), to, from, length);
  Push(call, process, target, {.kind = OpKind::kCopy, .to = to, .from = from, .length = length});
  return kOk;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t length, CUstream stream) {
  Call call("cuMemsetD8Async", kPlain);
  if (call.result() != kOk) return call.result();
  Process& process = TheProcess();
  StreamObject& target = call.Stream(stream);
  if (length == 0) return kOk;
  CheckTouch(call, process, call.device(), to, length, true);
  Push(call, process, target, {.kind = OpKind::kSet, .to = to, .length = length, .value = value});
  return kOk;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* lengths, size_t count,
                            CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                            size_t* failed, CUstream stream) {
  *failed = SIZE_MAX;
  return CopyBatch(to, from, lengths, count, attributes, firsts, attribute_count, stream);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* lengths, size_t count,
                               CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                               CUstream stream) {
  return CopyBatch(to, from, lengths, count, attributes, firsts, attribute_count, stream);
}

}  // extern "C"
}  // namespace weightcast::drivers
