#include "control/page_state.h"

#include <algorithm>

namespace weightcast::control {
namespace {

/// Of an update that many take part in, the slowest are kept: they say why it took so long.
constexpr size_t kMostOfEach = 16;

template <typename Moved>
void KeepSlowest(std::vector<Moved>& all) {
  std::ranges::stable_sort(all, std::greater(), &Moved::seconds);
  if (all.size() <= kMostOfEach) return;
  all.resize(kMostOfEach);
  all.shrink_to_fit();
}

}  // namespace

void PageState::Show(protocol::ClusterView view) {
  auto shared = std::make_shared<const protocol::ClusterView>(std::move(view));
  const std::lock_guard lock(mutex_);
  shown_.view.swap(shared);
  ++shown_.count;
  shown_.at = Clock::now();
  if (changed_) changed_();
}

void PageState::Add(UpdateRecord record) {
  KeepSlowest(record.done.senders);
  KeepSlowest(record.done.routes);
  auto shared = std::make_shared<UpdateRecord>(std::move(record));
  const std::lock_guard lock(mutex_);
  shared->number = ++last_number_;
  shared->change = ++last_change_;
  updates_.push_back(std::move(shared));
  if (updates_.size() > kMostUpdates)
    updates_.erase(std::ranges::min_element(updates_, {}, [](const auto& one) { return one->number; }));
  if (changed_) changed_();
}

void PageState::Explain(const Explained& explained) {
  const std::lock_guard lock(mutex_);
  const auto old = std::ranges::find_if(updates_, [&](const auto& one) {
    return one->model == explained.timeline.model && one->done.update.term == explained.timeline.id.term &&
           one->done.update.sequence == explained.timeline.id.sequence;
  });
  if (old == updates_.end() || (*old)->verdict == explained.verdict) return;
  auto shared = std::make_shared<UpdateRecord>(**old);
  shared->verdict = explained.verdict;
  shared->change = ++last_change_;
  updates_.erase(old);
  updates_.push_back(std::move(shared));
  if (changed_) changed_();
}

void PageState::OnChange(std::function<void()> changed) {
  const std::lock_guard lock(mutex_);
  changed_ = std::move(changed);
}

PageState::Shown PageState::shown() const {
  const std::lock_guard lock(mutex_);
  return shown_;
}

PageState::Records PageState::UpdatesAfter(uint64_t change) const {
  const std::lock_guard lock(mutex_);
  const auto first =
      std::ranges::partition_point(updates_, [&](const auto& one) { return one->change <= change; });
  return {first, updates_.end()};
}

}  // namespace weightcast::control
