#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "control/verdict.h"
#include "protocol/view.h"
#include "weightcast/clock.h"

/// What the deciding thread shows to the thread of the page (docs/http.md).
namespace weightcast::control {

/// One update, as it ended.
struct UpdateRecord {
  uint64_t number = 0;  ///< Rising, from 1; given by PageState.
  uint64_t change = 0;  ///< Likewise, and a new one with each verdict.
  std::string model;
  int64_t ended = 0;  ///< By this host's calendar, milliseconds since 1970.
  protocol::Done done;
  /// When the controller first sent each message, in seconds since the first grant request: "start",
  /// "release", "commit", "serve", "done"; in that order in time.
  std::vector<std::pair<std::string, double>> moments;
  Verdict verdict = {};  ///< Without a text: not known yet.
};

/// The newest view and the last updates. Any thread; each call holds a lock for as long as it takes to copy
/// pointers.
class PageState {
 public:
  static constexpr size_t kMostUpdates = 200;
  using Records = std::vector<std::shared_ptr<const UpdateRecord>>;
  struct Shown {
    std::shared_ptr<const protocol::ClusterView> view;
    uint64_t count = 0;  ///< Rises with each Show.
    TimePoint at;
  };

  /// Names the counting of its changes: no other controller's is named so.
  [[nodiscard]] const std::string& feed() const { return feed_; }
  void Show(protocol::ClusterView view);
  void Add(UpdateRecord record);
  /// Gives its update a verdict, if it is kept and has none that reads the same.
  void Explain(const Explained& explained);
  /// Called after each Show, Add and Explain, under the lock: it must do no more than wake a thread. nullptr:
  /// nobody.
  void OnChange(std::function<void()> changed);

  [[nodiscard]] Shown shown() const;
  /// Of the updates that are kept, those that were added or explained after this change, in order.
  [[nodiscard]] Records UpdatesAfter(uint64_t change) const;

 private:
  const std::string feed_ = std::to_string(RandomId());
  mutable std::mutex mutex_;
  Shown shown_;
  std::deque<std::shared_ptr<const UpdateRecord>> updates_;  ///< By change.
  uint64_t last_number_ = 0;
  uint64_t last_change_ = 0;
  std::function<void()> changed_;
};

}  // namespace weightcast::control
