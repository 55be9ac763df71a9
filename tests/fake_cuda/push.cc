// How calls put work into streams and wait for it.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "fake_cuda/process.h"

namespace weightcast::fake_cuda {

void WaitFor(const Call& call, Process& process, const std::function<bool()>& done) {
  while (!done()) {
    if (process.inlined()) {
      if (!process.link->Step()) call.Wrong("waits for ever: nothing can run");
      continue;
    }
    Area& area = process.link->area();
    const uint32_t seen = area.progress.load(std::memory_order_seq_cst);
    if (done()) return;
    const timespec limit{.tv_sec = 0, .tv_nsec = 20'000'000};
    const long woken = syscall(SYS_futex, &area.progress, FUTEX_WAIT, seen, &limit, nullptr, 0);
    if (woken == 0 || errno != ETIMEDOUT) continue;
    // The GPU's process may have ended: this notices.
    const std::lock_guard lock(process.link_mutex);
    process.link->Send({.kind = Ask::kPieces});
  }
}

StreamObject MakeStream(Call& call, Process& process, int device) {
  Area& area = process.link->area();
  for (size_t slot = 0; slot < kStreams; ++slot) {
    Ring& ring = area.rings[slot];
    if (ring.state.load(std::memory_order_acquire) != StreamState::kFree) continue;
    ring.gpu = process.GpuOf(device);
    ring.state.store(StreamState::kLive, std::memory_order_release);
    return {.slot = slot, .device = device, .launches = ring.launched.load()};
  }
  call.Wrong("more than " + std::to_string(kStreams) + " streams in one process");
}

void Push(Call& call, Process& process, StreamObject& stream, Op op) {
  if (stream.captured) call.Wrong("the stream is being captured");
  Ring& ring = process.link->area().rings[stream.slot];
  const uint64_t tail = ring.tail.load(std::memory_order_relaxed);
  const auto room = [&] {
    return tail - ring.head.load(std::memory_order_acquire) < kDepth || process.LostOf(stream.device) != 0;
  };
  if (!room() && process.inlined()) call.Wrong("the stream is full: this call would wait for ever");
  WaitFor(call, process, room);
  if (process.LostOf(stream.device) != 0) return;
  ring.ops[tail % kDepth] = op;
  ring.tail.store(tail + 1, std::memory_order_seq_cst);
  const std::lock_guard lock(process.link_mutex);
  process.link->Bell();
}

}  // namespace weightcast::fake_cuda
