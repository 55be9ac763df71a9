#include "fake_cuda/engine.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "fake_cuda/access.h"
#include "fake_cuda/kernels.h"

namespace weightcast::fake_cuda {
namespace {

using namespace drivers;  // NOLINT: the driver's names are its own.
using Clock = std::chrono::steady_clock;

void Wake(std::atomic<uint32_t>& word) {
  word.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Progress(Client& client) { Wake(client.area->progress); }

/// A copy begins anywhere in its bytes, and goes round.
uint64_t PieceOf(const Op& op, uint64_t count) {
  const uint64_t first = ((op.to ^ op.from) >> 12) * 0x9E3779B97F4A7C15ULL >> 33;
  return (first + op.done) % count;
}

uint64_t PiecesOf(const Op& op) {
  if (op.kind != OpKind::kCopy && op.kind != OpKind::kSet) return 1;
  return std::max<uint64_t>((op.length + kPiece - 1) / kPiece, 1);
}

}  // namespace

Engine::Engine(Machine& machine)
    : machine_(machine), random_(machine.config().seed), delay_us_(machine.config().delay_us) {}

bool Engine::Blocked(const Client& client, const Ring& ring) const {
  const Op& op = ring.ops[ring.head.load(std::memory_order_relaxed) % kDepth];
  return op.kind == OpKind::kWait &&
         client.area->recorded[op.slot].load(std::memory_order_acquire) < op.value;
}

std::vector<Engine::Choice> Engine::Runnable() {
  std::vector<Choice> found;
  next_due_ = {};
  const auto now = pauses_.empty() ? Clock::time_point{} : Clock::now();
  for (const auto& [id, client] : machine_.clients()) {
    for (size_t i = 0; i < kStreams; ++i) {
      Ring& ring = client->area->rings[i];
      if (ring.state.load(std::memory_order_acquire) == StreamState::kFree) continue;
      Retire(*client, ring);
      if (ring.tail.load(std::memory_order_acquire) == ring.head.load(std::memory_order_relaxed)) continue;
      if (held_[ring.gpu] || client->area->lost[ring.gpu].load() != 0 || Blocked(*client, ring)) continue;
      const auto pause = pauses_.find({id, i});
      if (pause != pauses_.end() && pause->second > now) {
        if (next_due_ == Clock::time_point{} || pause->second < next_due_) next_due_ = pause->second;
        continue;
      }
      found.push_back({client.get(), i});
    }
  }
  return found;
}

// A destroyed stream is free once it is empty, or its context is lost.
void Engine::Retire(Client& client, Ring& ring) {
  if (ring.state.load(std::memory_order_acquire) != StreamState::kClosing) return;
  const bool empty = ring.tail.load(std::memory_order_acquire) == ring.head.load(std::memory_order_relaxed);
  if (!empty && client.area->lost[ring.gpu].load() == 0) return;
  ring.head.store(ring.tail.load());
  ring.state.store(StreamState::kFree, std::memory_order_release);
}

bool Engine::Idle(const Client& client) const {
  return std::ranges::none_of(client.area->rings, [](const Ring& ring) {
    return ring.state.load(std::memory_order_acquire) != StreamState::kFree &&
           ring.tail.load(std::memory_order_acquire) != ring.head.load(std::memory_order_relaxed);
  });
}

void Engine::Forget(const Client& client) {
  std::erase_if(pauses_, [&](const auto& pause) { return pause.first.first == client.id; });
}

bool Engine::Step() {
  ApplyLosses();
  runnable_ = Runnable();
  if (runnable_.empty()) return false;
  const Choice choice = runnable_[Below(runnable_.size())];
  RunPiece(choice);
  if (delay_us_ > 0 && !machine_.inlined()) {
    pauses_[{choice.client->id, choice.stream}] =
        Clock::now() + std::chrono::microseconds(Below(delay_us_ + 1));
  }
  return true;
}

// --- One piece

size_t Engine::PickInBatch(Ring& ring, uint64_t head, uint64_t tail) {
  const uint32_t batch = ring.ops[head % kDepth].batch;
  if (batch == 0) return head;
  std::vector<uint64_t> open;
  for (uint64_t i = head; i < tail && ring.ops[i % kDepth].batch == batch; ++i) {
    if (ring.ops[i % kDepth].done < PiecesOf(ring.ops[i % kDepth])) open.push_back(i);
  }
  return open[Below(open.size())];
}

void Engine::RunPiece(const Choice& choice) {
  Ring& ring = choice.client->area->rings[choice.stream];
  uint64_t head = ring.head.load(std::memory_order_relaxed);
  const uint64_t tail = ring.tail.load(std::memory_order_acquire);
  Op& op = ring.ops[PickInBatch(ring, head, tail) % kDepth];
  ++pieces_;
  if (!RunOp(*choice.client, ring, op)) {
    choice.client->area->lost[ring.gpu].store(CUDA_ERROR_ILLEGAL_ADDRESS, std::memory_order_seq_cst);
    Progress(*choice.client);
    return;
  }
  ++op.done;
  const uint64_t before = head;
  while (head < tail && ring.ops[head % kDepth].done >= PiecesOf(ring.ops[head % kDepth])) ++head;
  if (head == before) return;
  ring.head.store(head, std::memory_order_release);
  Progress(*choice.client);
}

/// False: the address is not its client's.
bool Engine::RunOp(Client& client, Ring& ring, Op& op) {
  switch (op.kind) {
    case OpKind::kCopy:
      return CopyPiece(client, ring, op);
    case OpKind::kSet:
      return Set(client, op);
    case OpKind::kWriteValue:
      WriteValue(client, op);
      return true;
    case OpKind::kRecord:
      client.area->recorded[op.slot].store(op.value, std::memory_order_seq_cst);
      return true;
    case OpKind::kWait:
      return true;
    case OpKind::kKernel:
      return RunKernelOp(ring, op);
  }
  return true;
}

bool Engine::Garbage(int gpu, uint64_t to, uint64_t from) const {
  const int target = machine_.GpuAt(to);
  const int source = machine_.GpuAt(from);
  const auto lies = [&](int a, int b) {
    return a >= 0 && b >= 0 && machine_.config().peer[a][b] == Peer::kGarbage;
  };
  return lies(source, target) || lies(source, gpu) || lies(gpu, target);
}

/// Into the buffer.
Access Engine::Fetch(const Client& client, uint64_t from, size_t length) {
  if (!machine_.Sees(from)) return ReadProcess(client.pid, from, buffer_, length);
  const bool done = Guarded([&] { std::memcpy(buffer_, machine_.See(from), length); });
  return done ? Access::kDone : Access::kNoMemory;
}

Access Engine::Store(const Client& client, uint64_t to, size_t length) {
  if (!machine_.Sees(to)) return WriteProcess(client.pid, to, buffer_, length);
  const bool done = Guarded([&] { std::memcpy(machine_.See(to), buffer_, length); });
  return done ? Access::kDone : Access::kNoMemory;
}

bool Engine::CopyPiece(Client& client, const Ring& ring, Op& op) {
  if (op.length == 0) return true;
  const uint64_t offset = PieceOf(op, PiecesOf(op)) * kPiece;
  const size_t length = std::min(kPiece, op.length - offset);
  // What a dead process had in host memory cannot be read any more: the copy is cut there.
  if (const Access got = Fetch(client, op.from + offset, length); got != Access::kDone) {
    return got == Access::kDead;
  }
  if (Garbage(ring.gpu, op.to, op.from)) {
    for (size_t i = 0; i < length; ++i) buffer_[i] ^= std::byte{0x5A};
  }
  return Store(client, op.to + offset, length) != Access::kNoMemory;
}

bool Engine::Set(Client& client, Op& op) {
  const uint64_t offset = PieceOf(op, PiecesOf(op)) * kPiece;
  if (offset >= op.length) return true;
  const size_t length = std::min(kPiece, op.length - offset);
  std::memset(buffer_, static_cast<int>(op.value), length);
  return Store(client, op.to + offset, length) != Access::kNoMemory;
}

// One store, as the device's: a reader never sees half of it.
void Engine::WriteValue(Client& client, const Op& op) {
  if (machine_.Sees(op.to)) {
    auto* const word = reinterpret_cast<std::atomic<uint64_t>*>(machine_.See(op.to));
    word->store(op.value, std::memory_order_seq_cst);
    return;
  }
  std::memcpy(buffer_, &op.value, sizeof op.value);
  WriteProcess(client.pid, op.to, buffer_, sizeof op.value);
}

bool Engine::RunKernelOp(Ring& ring, const Op& op) {
  if (machine_.inlined()) machine_.Expose(true);
  const bool ran = Guarded([&] { RunKernel(op.kernel, op.grid, op.block, ring.parameters[op.slot]); });
  if (machine_.inlined()) machine_.Expose(false);
  ring.launched.fetch_add(1, std::memory_order_release);
  return ran;
}

// --- Controls

void Engine::ApplyLosses() {
  if (losses_.empty()) return;
  const auto due = losses_;
  std::erase_if(losses_, [&](const Loss& loss) { return pieces_ >= loss.at; });
  for (const Loss& loss : due) {
    if (pieces_ >= loss.at) Lose(loss.pid, loss.gpu, loss.error);
  }
}

void Engine::Lose(int pid, int gpu, int error) {
  for (const auto& [id, client] : machine_.clients()) {
    if (pid >= 0 && client->pid != pid) continue;
    client->area->lost[gpu].store(error, std::memory_order_seq_cst);
    Progress(*client);
  }
}

void Engine::SetFault(const Request& request) {
  for (const auto& [id, client] : machine_.clients()) {
    if (client->pid != request.pid) continue;
    const auto free = std::ranges::find_if(client->area->faults, [](const Fault& f) { return f.armed == 0; });
    if (free == std::end(client->area->faults)) Wrong("fake_cuda_fail", "too many faults at a time");
    free->nth = static_cast<int32_t>(request.a);
    free->result = static_cast<int32_t>(request.b);
    free->block_ms = static_cast<int32_t>(request.c);
    std::strncpy(free->call, request.text, sizeof free->call - 1);
    free->armed.store(1, std::memory_order_release);
  }
}

Reply Engine::Serve(const Request& request) {
  switch (request.kind) {
    case Ask::kHold:
      for (int gpu = 0; gpu < kMaxGpus; ++gpu) {
        if (request.gpu < 0 || request.gpu == gpu) held_[gpu] = request.a != 0;
      }
      return {};
    case Ask::kOrder:
      Seed(request.a);
      return {};
    case Ask::kDelay:
      delay_us_ = static_cast<uint32_t>(request.a);
      return {};
    case Ask::kPeer:
      machine_.config().peer[request.gpu][request.a] = static_cast<Peer>(request.b);
      return {};
    case Ask::kCanReach:
      return {.a = static_cast<uint64_t>(machine_.config().peer[request.gpu][request.a])};
    case Ask::kLose:
      losses_.push_back({request.pid, request.gpu, static_cast<int>(request.a), pieces_ + request.b});
      ApplyLosses();
      return {};
    case Ask::kPieces:
      return {.a = pieces_};
    case Ask::kFault:
      SetFault(request);
      return {};
    case Ask::kUnblock:
      for (const auto& [id, client] : machine_.clients()) {
        if (client->pid == request.pid) Wake(client->area->unblocked);
      }
      return {};
    case Ask::kBlocked: {
      uint64_t blocked = 0;
      for (const auto& [id, client] : machine_.clients()) {
        if (client->pid == request.pid) blocked += client->area->blocked.load();
      }
      return {.a = blocked};
    }
    case Ask::kLive:
      return {.live = machine_.Live(request.pid)};
    default:
      Wrong("machine", "there is no such control");
  }
}

}  // namespace weightcast::fake_cuda
