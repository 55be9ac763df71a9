#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/poller.h"
#include "base/task_queue.h"
#include "stream/handshakes.h"
#include "stream/server.h"

namespace weightcast::stream {

/// The streams of a server and the turns of its thread. One thread's, but for Post, Stop and handing
/// connections over.
class StreamLoop {
 public:
  static constexpr size_t kMostFramesATurn = 16;

  StreamLoop(ServerHandlers handlers, size_t most_queued, Duration lease)
      : handlers_(std::move(handlers)), most_queued_(most_queued), lease_(lease) {}
  Status Begin(std::shared_ptr<const ServerKeys> keys, Duration patience, size_t most_handshakes);
  /// Turns until Stop.
  void Run();
  void Stop();
  void Post(std::function<void()> task);
  void HandOver(UniqueFd fd) { handshakes_->Add(std::move(fd)); }
  [[nodiscard]] bool OnThread() const { return std::this_thread::get_id() == thread_; }

 private:
  class Stream;
  using StreamPtr = std::shared_ptr<Stream>;

  void Turn();
  [[nodiscard]] std::optional<Duration> Timeout() const;
  void Open(Handshakes::Proven proven);
  void Serve(uint64_t id, uint32_t events);
  void Deliver(const StreamPtr& stream);
  void Discard(const StreamPtr& stream);
  bool DeliverFrame(const StreamPtr& stream, Frame frame);
  void ServeReady();
  void Flush(const StreamPtr& stream);
  void FlushAll();
  void EndLate();
  void SetInterest(const StreamPtr& stream);
  void Drop(const StreamPtr& stream, const Status& reason);
  void LimitWaiting();

  const ServerHandlers handlers_;
  const size_t most_queued_;
  const Duration lease_;
  Poller poller_;
  WakeFd wake_;
  TaskQueue tasks_;
  std::atomic<bool> stop_{false};
  std::atomic<std::thread::id> thread_{};
  size_t most_handshakes_ = 0;
  std::unique_ptr<Handshakes> handshakes_;
  std::unordered_map<uint64_t, StreamPtr> streams_;
  uint64_t next_id_ = 0;
  std::vector<StreamPtr> ready_;  ///< Have decrypted frames, of which no descriptor tells.
  std::vector<StreamPtr> dirty_;  ///< Have something to send, or are to end.
  std::deque<std::pair<TimePoint, StreamPtr>> closing_;
};

}  // namespace weightcast::stream
