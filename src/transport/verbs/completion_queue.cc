#include "transport/verbs/completion_queue.h"

#include <utility>

#include "base/strings.h"

namespace weightcast::transport::verbs {

Status CompletionQueue::Create(uint32_t entries) {
  channel_ = device_.api().CreateCompChannel(device_.context());
  if (channel_ == nullptr || !SetNonBlocking(channel_->fd)) return device_.NotMade("a completion channel");
  queue_ = device_.api().CreateCq(device_.context(), static_cast<int>(entries), channel_);
  if (queue_ == nullptr) return device_.NotMade("a completion queue");
  room_ = entries;
  return Status::Ok();
}

CompletionQueue::~CompletionQueue() {
  if (queue_ != nullptr) device_.api().DestroyCq(queue_);
  if (channel_ != nullptr) device_.api().DestroyCompChannel(channel_);
}

std::span<const ibv_wc> CompletionQueue::Poll() {
  const int count = device_.api().PollCq(queue_, kBatch, polled_.data());
  if (count < 0) {
    device_.Die(StrCat(device_.name(), ": its completion queue cannot be polled"));
    return {};
  }
  const auto found = static_cast<uint32_t>(count);
  if (found < kBatch) room_ += std::exchange(stale_, 0);
  return std::span(polled_).first(found);
}

Status CompletionQueue::Arm() const {
  const int error = device_.api().ReqNotifyCq(queue_, false);
  return error == 0 ? Status::Ok() : device_.Failed("cannot ask for events", error);
}

void CompletionQueue::Disarm() const {
  ibv_cq* queue = nullptr;
  unsigned int events = 0;
  while (device_.api().GetCqEvent(channel_, &queue) == 0) ++events;
  if (events > 0) device_.api().AckCqEvents(queue_, events);
}

}  // namespace weightcast::transport::verbs
