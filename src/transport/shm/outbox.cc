#include "transport/shm/outbox.h"

namespace weightcast::transport::shm {

std::byte* Outbox::Reserve(uint64_t length, uint64_t& position) {
  const uint64_t taken = shared().payload_taken.load(std::memory_order_acquire);
  if (taken - payload_seen_ > payload_next_ - payload_seen_) {  // Backwards, or ahead of what was written.
    broken_ = true;
    return nullptr;
  }
  payload_seen_ = taken;
  const uint64_t at = payload_next_ % kPayloadBytes;
  const uint64_t skip = at + length > kPayloadBytes ? kPayloadBytes - at : 0;
  if (payload_next_ + skip + length - payload_seen_ > kPayloadBytes) return nullptr;
  position = payload_next_ + skip;
  return payload_.data() + position % kPayloadBytes;
}

}  // namespace weightcast::transport::shm
