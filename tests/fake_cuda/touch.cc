// Which bytes a call may touch, and which are in use.
#include <algorithm>

#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {
namespace {

template <typename Map>
typename Map::iterator FindIn(Map& map, uint64_t address) {
  auto after = map.upper_bound(address);
  if (after == map.begin()) return map.end();
  --after;
  return address < after->first + after->second.length ? after : map.end();
}

bool Overlap(uint64_t a, uint64_t a_length, uint64_t b, uint64_t b_length) {
  return a < b + b_length && b < a + a_length;
}

bool Touches(const Op& op, uint64_t address, uint64_t length) {
  switch (op.kind) {
    case OpKind::kCopy:
      return Overlap(op.to, op.length, address, length) || Overlap(op.from, op.length, address, length);
    case OpKind::kSet:
      return Overlap(op.to, op.length, address, length);
    case OpKind::kWriteValue:
      return Overlap(op.to, sizeof(uint64_t), address, length);
    default:
      return false;
  }
}

void CheckAccess(Call& call, const Range& range, int device, uint64_t address, bool write) {
  const uint32_t allowed = write ? range.writers : range.readers;
  if ((allowed >> device & 1) != 0) return;
  if (range.readers == 0) call.Wrong(Text(address) + " is mapped, but cuMemSetAccess was not called");
  call.Wrong(Text(address) + " may not be " + (write ? "written" : "read") + " by device " +
             std::to_string(device) + ": cuMemSetAccess did not allow it");
}

}  // namespace

std::map<uint64_t, Range>::iterator FindRange(Process& process, uint64_t address) {
  return FindIn(process.ranges, address);
}

std::map<uint64_t, Pinned>::iterator FindPinned(Process& process, uint64_t address) {
  return FindIn(process.pinned, address);
}

void CheckTouch(Call& call, Process& process, int device, uint64_t address, uint64_t length, bool write) {
  const uint64_t end = address + length;
  while (address < end) {
    if (const auto range = FindRange(process, address); range != process.ranges.end()) {
      CheckAccess(call, range->second, device, address, write);
      address = range->first + range->second.length;
      // Neighbouring mappings are one range to a copy; neighbouring allocations are not.
      if (address < end && range->second.kind != MemoryKind::kCreated) {
        call.Wrong("the copy goes beyond the end of its allocation, " + Text(address));
      }
    } else if (const auto pinned = FindPinned(process, address); pinned != process.pinned.end()) {
      address = pinned->first + pinned->second.length;
    } else if (IsDevice(address)) {
      call.Wrong(Text(address) + " is no device memory: it was freed or unmapped, or never was some");
    } else {
      call.Wrong(Text(address) + " is host memory that is not pinned: such a copy is not asynchronous");
    }
  }
}

void CheckUnused(Call& call, Process& process, uint64_t address, uint64_t length) {
  for (const Ring& ring : process.link->area().rings) {
    if (ring.state.load(std::memory_order_acquire) == StreamState::kFree) continue;
    if (process.link->area().lost[ring.gpu].load() != 0) continue;
    const uint64_t tail = ring.tail.load(std::memory_order_acquire);
    for (uint64_t i = ring.head.load(std::memory_order_acquire); i < tail; ++i) {
      if (!Touches(ring.ops[i % kDepth], address, length)) continue;
      call.Wrong(Text(address) + " is still used by a copy that is not over");
    }
  }
}

}  // namespace weightcast::fake_cuda
