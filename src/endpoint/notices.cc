#include "endpoint/notices.h"

#include <utility>

#include "base/strings.h"
#include "endpoint/message.h"

namespace weightcast::endpoint {
namespace {

/// Credit is sent when this much has been taken since the last time: few messages, and a sender whose peer
/// has taken everything always has credit for the longest notice.
constexpr uint64_t kCreditStep = Notices::kWindow / 4;
static_assert(Notices::kWindow - kCreditStep >= Notices::CostOf(kMaxNotice));

}  // namespace

bool Notices::Reserve(size_t bytes) {
  const uint64_t cost = CostOf(bytes);
  // First this, so that what was reserved is never less. Whoever waits is told of what comes meanwhile.
  const uint64_t took = peer_took_.load(std::memory_order_acquire);
  uint64_t reserved = reserved_.load(std::memory_order_relaxed);
  do {
    if (reserved + cost - took > kWindow) return false;
  } while (!reserved_.compare_exchange_weak(reserved, reserved + cost, std::memory_order_relaxed));
  return true;
}

Status Notices::OnCredit(std::string_view payload) {
  const auto taken = ParseCredit(payload);
  if (!taken || *taken <= peer_took_.load(std::memory_order_relaxed) || *taken > sent_) {
    return {Code::kProtocol,
            "it sent malformed credit for notices, or credit for notices that were not sent"};
  }
  peer_took_.store(*taken, std::memory_order_release);
  Grow(credited_);
  return Status::Ok();
}

Result<bool> Notices::OnNotice(std::string bytes) {
  if (bytes.size() > kMaxNotice) {
    return Error(Code::kProtocol, "it sent a notice of ", bytes.size(), " bytes; at most ", kMaxNotice,
                 " are allowed");
  }
  received_ += CostOf(bytes.size());
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (received_ - told_ > kWindow)
      return Status(Code::kProtocol, "it sent more notices than it had credit for");
    first = queue_.empty();
    queue_.push_back(std::move(bytes));
  }
  Grow(arrived_);
  return first;
}

std::optional<std::string> Notices::Take() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty()) return std::nullopt;
  std::string bytes = std::move(queue_.front());
  queue_.pop_front();
  taken_ += CostOf(bytes.size());
  return bytes;
}

bool Notices::CreditDue() {
  const std::lock_guard lock(mutex_);
  return taken_ - told_ >= kCreditStep && !std::exchange(telling_, true);
}

std::string Notices::NextCredit() {
  const std::lock_guard lock(mutex_);
  telling_ = false;
  told_ = taken_;
  return EncodeCredit(told_);
}

void Notices::OnEnd() {
  Grow(credited_);
  Grow(arrived_);
}

}  // namespace weightcast::endpoint
