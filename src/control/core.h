#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "control/observers.h"
#include "control/stream_handler.h"

namespace weightcast::control {

/// The controller without its network: owns the machine of each model, the sessions and the timers, in one
/// thread (`wc-controller`) that everything reaches through its mailbox.
class Core {
 public:
  /// `page`: where views and updates are shown, too; nullptr: nowhere.
  explicit Core(const Settings& settings, const std::shared_ptr<PageState>& page = nullptr);
  ~Core() { Stop(); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  /// Once, before sessions come. kExhausted where the system gives no thread.
  Status Start();
  /// For the listener; any thread.
  [[nodiscard]] ListenerHandlers Handlers();
  /// Ends the thread. Sessions are dropped without a word: their workers try to come back.
  void Stop();

 private:
  void Run();
  /// Heartbeats and leases.
  void Tick();
  /// While updates are under way: notes when this thread did not run, or was long at one thing.
  void WatchStalls(bool watched);
  /// For Prometheus; any thread but this one's.
  void Collect(std::vector<trace::Metric>& metrics);

  const Duration beat_;  ///< Between heartbeats.
  const SharedPacket heartbeat_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  Sessions sessions_;
  Executor executor_;
  Observers observers_;
  StreamHandler streams_;
  TimePoint next_tick_;
  TimePoint next_look_;  ///< For stalls.
  bool stop_ = false;
  std::thread thread_;
  std::unique_ptr<trace::Collector> collector_;  ///< While the thread runs.
};

}  // namespace weightcast::control
