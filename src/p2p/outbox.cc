#include "p2p/outbox.h"

#include <chrono>
#include <utility>

#include "base/thread.h"

namespace weightcast::p2p {

Outbox::~Outbox() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool Outbox::Post(const Connection& connection, std::string bytes) {
  const std::lock_guard lock(mutex_);
  const Incarnation peer = connection.peer().incarnation;
  const auto found = queues_.find(peer);
  if (found == queues_.end() && Connection(connection).Notify(bytes).code() != Code::kExhausted) return true;
  auto& queue =
      found != queues_.end() ? found->second : queues_.try_emplace(peer, Queue{connection, {}}).first->second;
  if (queue.waiting.size() >= kMost) return false;
  queue.waiting.push_back(std::move(bytes));
  if (!thread_.joinable()) {
    auto thread = StartThread("wc-p2p-out", [this] { Run(); });
    if (!thread.ok()) return false;
    thread_ = std::move(*thread);
  }
  changed_.notify_all();
  return true;
}

void Outbox::Drop(Incarnation peer) {
  const std::lock_guard lock(mutex_);
  queues_.erase(peer);
}

/// True when nothing is left: sent, or of no use any more.
bool Outbox::SendAll(Queue& queue) {
  while (!queue.waiting.empty()) {
    const Status sent = queue.connection.Notify(queue.waiting.front());
    if (sent.code() == Code::kExhausted) return false;
    if (!sent.ok()) return true;
    queue.waiting.pop_front();
  }
  return true;
}

void Outbox::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    for (auto at = queues_.begin(); at != queues_.end();)
      at = SendAll(at->second) ? queues_.erase(at) : std::next(at);
    if (queues_.empty()) {
      changed_.wait(lock, [this] { return stop_ || !queues_.empty(); });
    } else {
      // Room comes when the peer has read: there is no event for it that several connections share.
      changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return stop_; });
    }
  }
}

}  // namespace weightcast::p2p
