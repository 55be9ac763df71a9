#include "control/session_link.h"

#include <utility>

namespace weightcast::control {
namespace {

/// Kept for a peer that has not acknowledged: a few of the largest messages, or very many small ones.
constexpr size_t kMaxKeptBytes = size_t{1} << 30;
constexpr size_t kMaxKeptMessages = size_t{1} << 18;
constexpr size_t kMaxUrgent = 8;

}  // namespace

uint64_t SessionLink::Push(SharedPacket packet) {
  const std::lock_guard lock(mutex_);
  const size_t bytes = packet->bytes();
  if (bytes_ + bytes > kMaxKeptBytes || kept_.size() >= kMaxKeptMessages) return 0;
  bytes_ += bytes;
  kept_.push_back(std::move(packet));
  return first_ + kept_.size() - 1;
}

void SessionLink::PushUrgent(SharedPacket packet, uint64_t session) {
  const std::lock_guard lock(mutex_);
  // Only heartbeats can pile up; one that waits says as much as many.
  if (urgent_.size() < kMaxUrgent) urgent_.push_back({std::move(packet), session});
}

void SessionLink::Hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
  next_part_ = 0;
  urgent_.clear();
}

std::optional<Outgoing> SessionLink::Next() {
  const std::lock_guard lock(mutex_);
  Outgoing out;
  out.acknowledged = received();
  // Not between the pieces of a message: they are put together in order.
  if (!urgent_.empty() && next_part_ == 0) {
    out.packet = std::move(urgent_.front().packet);
    out.session = urgent_.front().session;
    urgent_.pop_front();
    return out;
  }
  if (held_ || next_ == kept_.size()) return std::nullopt;
  out.packet = kept_[next_];
  out.number = first_ + next_;
  out.part = next_part_;
  out.kind = out.packet->kind(next_part_);
  if (++next_part_ == out.packet->parts.size()) {
    next_part_ = 0;
    ++next_;
  }
  return out;
}

bool SessionLink::Acknowledge(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number >= first_ + next_) return number < first_;
  while (first_ <= number) {
    bytes_ -= kept_.front()->bytes();
    kept_.pop_front();
    ++first_;
    --next_;
  }
  return true;
}

bool SessionLink::Rewind(uint64_t acknowledged) {
  {
    const std::lock_guard lock(mutex_);
    if (acknowledged + 1 < first_ || acknowledged >= first_ + kept_.size()) return false;
    next_ = kept_.size();
    next_part_ = 0;
    urgent_.clear();
  }
  Acknowledge(acknowledged);
  const std::lock_guard lock(mutex_);
  next_ = 0;
  held_ = false;
  return true;
}

void SessionLink::Reset() {
  const std::lock_guard lock(mutex_);
  urgent_.clear();
  kept_.clear();
  first_ = 1;
  bytes_ = 0;
  next_ = 0;
  next_part_ = 0;
  held_ = false;
  received_ = 0;
}

bool SessionLink::Receive(uint64_t number, bool& duplicate) {
  const uint64_t before = received();
  duplicate = number <= before;
  if (duplicate) return true;
  if (number != before + 1) return false;
  received_.store(number, std::memory_order_relaxed);
  return true;
}

bool SessionLink::drained() const {
  const std::lock_guard lock(mutex_);
  return kept_.empty();
}

}  // namespace weightcast::control
