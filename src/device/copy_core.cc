#include "device/copy_core.h"

#include <algorithm>
#include <chrono>

#include "trace/metrics.h"

namespace weightcast::device {
namespace {

/// A lost context writes no words. It is looked for this often.
constexpr Duration kAskInterval = std::chrono::milliseconds(1);

struct Metrics {
  trace::Counter& copies = trace::CounterNamed("gpu.copies");
  trace::Counter& bytes = trace::CounterNamed("gpu.bytes");
  trace::Timing& batch = trace::TimingNamed("gpu.batch");
};
Metrics& Counted() {
  static Metrics metrics;
  return metrics;
}

}  // namespace

CopyQueue::Core::Core(const Worker& worker, const CopyQueueOptions& options)
    : health_(worker.health()), copies_(CopyLimits::kCopies), streams_(health_, worker.kernels(), options) {
  Counted();  // Looked up here: finding them takes a lock.
}

bool CopyQueue::Core::Fits(size_t count, uint64_t bytes) const {
  if (unfinished() == 0) return true;
  return unfinished() < CopyLimits::kBatches && copies_end_ - copies_begin_ + count <= CopyLimits::kCopies &&
         bytes_ + bytes <= CopyLimits::kBytes;
}

std::optional<Ticket> CopyQueue::Core::Submit(std::span<const Copy> copies) {
  if (copies.empty() || copies.size() > CopyLimits::kCopies) return std::nullopt;
  uint64_t bytes = 0;
  for (const Copy& copy : copies) bytes += copy.length;
  if (!Fits(copies.size(), bytes)) return std::nullopt;
  const uint64_t ticket = newest_.load(std::memory_order_relaxed) + 1;
  SlotOf(ticket) = {.first = copies_end_, .count = copies.size(), .bytes = bytes};
  for (const Copy& copy : copies) copies_[copies_end_++ % CopyLimits::kCopies] = copy;
  bytes_ += bytes;
  newest_.store(ticket, std::memory_order_release);
  return Ticket{ticket};
}

bool CopyQueue::Core::HasFinished() const {
  if (unfinished() == 0) return false;
  if (failed_.load(std::memory_order_seq_cst)) return true;
  const CompletionWords* const words = words_.load(std::memory_order_seq_cst);
  return words != nullptr && words->Over(told_ + 1);
}

std::optional<CopyQueue::Finished> CopyQueue::Core::TakeFinished() {
  // First: of a queue that has failed by now, nothing is told as arrived.
  const bool failed = failed_.load(std::memory_order_acquire);
  if (unfinished() == 0 || (!failed && !HasFinished())) return std::nullopt;
  const Slot& slot = SlotOf(++told_);
  copies_begin_ += slot.count;
  bytes_ -= slot.bytes;
  return Finished{Ticket{told_}, !failed};
}

Status CopyQueue::Core::failure() const {
  return failed_.load(std::memory_order_acquire) ? failure_ : Status::Ok();
}

// --- wc-device

Work::State CopyQueue::Core::Step() {
  const bool closed = closed_.load(std::memory_order_acquire);
  State state = State::kIdle;
  if (!failed_.load(std::memory_order_relaxed)) {
    if (health_->lost()) {
      Fail(health_->failure());
      state = State::kMoved;
    } else {
      state = failing_.ok() ? Advance(closed) : EndFailing();
    }
  }
  if (!closed || state == State::kWaiting || state == State::kMoved) return state;
  streams_.Close();
  return State::kOver;
}

bool CopyQueue::Core::GoesOnAlone() const {
  return closed_.load(std::memory_order_acquire) && !failed_.load(std::memory_order_relaxed) &&
         over_ != begun_;
}

Work::State CopyQueue::Core::Advance(bool closed) {
  bool moved = Look();
  if (failing_.ok() && !closed) moved = BeginAll() || moved;
  if (moved || !failing_.ok()) return State::kMoved;
  return over_ == begun_ ? State::kIdle : State::kWaiting;
}

/// True if anything was begun.
bool CopyQueue::Core::BeginAll() {
  if (!streams_.open()) {
    if (const Status opened = streams_.Open(); !opened.ok()) {
      StartFailing(opened);
      return true;
    }
    words_.store(&streams_.words(), std::memory_order_seq_cst);
  }
  const uint64_t newest = newest_.load(std::memory_order_acquire);
  const uint64_t begun_before = begun_;
  while (begun_ < newest) {
    Look();  // Whose slot this takes is over: progress has seen it, and here it has to be seen as well.
    if (!failing_.ok()) return true;
    const uint64_t ticket = ++begun_;  // Whatever the call says, some of it may run.
    const Slot& slot = SlotOf(ticket);
    const size_t at = slot.first % CopyLimits::kCopies;
    const size_t until_end = std::min(slot.count, CopyLimits::kCopies - at);
    const std::span<const Copy> ring(copies_);
    began_[ticket % CopyLimits::kBatches] = Clock::now();
    Counted().copies.Add(slot.count);
    Counted().bytes.Add(slot.bytes);
    const Status begun =
        streams_.Begin(ticket, ring.subspan(at, until_end), ring.first(slot.count - until_end));
    if (!begun.ok()) {
      StartFailing(begun);
      return true;
    }
  }
  return begun_ > begun_before;
}

/// True if a batch is over since the last look.
bool CopyQueue::Core::Look() {
  const uint64_t over_before = over_;
  while (over_ < begun_) {
    if (!streams_.words().Over(over_ + 1) && !Ask(over_ + 1)) break;
    ++over_;
    Counted().batch.Add(Clock::now() - began_[over_ % CopyLimits::kBatches]);
  }
  return over_ > over_before;
}

/// Whether the batch's event says that it is over; where words are written, it is asked for errors only.
bool CopyQueue::Core::Ask(uint64_t ticket) {
  if (streams_.writes_words()) {
    const TimePoint now = Clock::now();
    if (now - asked_ < kAskInterval) return false;
    asked_ = now;
  }
  auto over = streams_.AskEvent(ticket);
  if (!over.ok()) StartFailing(over.status());
  return over.ok() && *over;
}

void CopyQueue::Core::StartFailing(const Status& why) {
  if (!failing_.ok()) return;
  failing_ = Status(Code::kInternal, why.message());
  if (health_->lost() || !streams_.open()) Fail(failing_);
}

/// What was begun still runs after an error of one call: the queue has failed when all of it is over.
Work::State CopyQueue::Core::EndFailing() {
  auto over = streams_.EverythingOver();
  if (health_->lost() || (over.ok() && *over)) {
    Fail(failing_);
    return State::kMoved;
  }
  return State::kWaiting;
}

void CopyQueue::Core::Fail(const Status& why) {
  failure_ = Status(Code::kInternal, why.message());
  failed_.store(true, std::memory_order_seq_cst);
}

}  // namespace weightcast::device
