#pragma once

#include "base/task_thread.h"
#include "control/executor.h"

namespace weightcast::control {

/// Shows views of the cluster to the page and to observers, and answers what observers ask. Belongs to the
/// thread wc-controller.
class Observers {
 public:
  /// `page`: where views and updates are shown, too; nullptr: nowhere.
  Observers(const Executor& executor, Sessions& sessions, std::shared_ptr<PageState> page);

  void Add(const std::shared_ptr<ViewSink>& sink);
  void Remove(const std::shared_ptr<ViewSink>& sink) { watchers_.erase(sink); }
  void Answer(const std::shared_ptr<ViewSink>& sink, const protocol::AskTrace& ask);
  void Answer(const std::shared_ptr<ViewSink>& sink, const protocol::AskUpdates& ask);

  /// When to call ShowIfDue.
  [[nodiscard]] TimePoint next() const;
  void ShowIfDue(TimePoint now);
  [[nodiscard]] protocol::ClusterView View() const;

 private:
  struct Watcher {
    bool asks = false;             ///< Asks for traces, and sees no views.
    std::optional<uint64_t> from;  ///< What it has asked.
  };
  [[nodiscard]] bool Changed() const { return shown_ != executor_.changes(); }

  const Executor& executor_;
  Sessions& sessions_;
  const std::shared_ptr<PageState> page_;
  std::map<std::shared_ptr<ViewSink>, Watcher> watchers_;
  TimePoint next_;
  TimePoint earliest_;                 ///< Of the next view, where something has changed.
  std::optional<uint64_t> shown_ = 0;  ///< Executor::changes; nullopt: not shown to all.
  TaskThread explainer_{"wc-explain"};
};

}  // namespace weightcast::control
