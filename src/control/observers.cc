#include "control/observers.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/explain_json.h"

namespace weightcast::control {
namespace {

constexpr Duration kLeastViewInterval = std::chrono::milliseconds(50);
constexpr Duration kViewInterval = std::chrono::seconds(1);

}  // namespace

Observers::Observers(const Executor& executor, Sessions& sessions, std::shared_ptr<PageState> page)
    : executor_(executor), sessions_(sessions), page_(std::move(page)), next_(Clock::now() + kViewInterval) {
  if (page_ != nullptr) page_->Show(View());
}

void Observers::Add(const std::shared_ptr<ViewSink>& sink) {
  watchers_[sink] = {};
  shown_.reset();
}

void Observers::Answer(const std::shared_ptr<ViewSink>& sink, const protocol::AskTrace& ask) {
  sink->Continue();
  const auto at = watchers_.find(sink);
  if (at == watchers_.end()) return;
  at->second = {.asks = true, .from = ask.from};
  shown_.reset();
}

/// JSON of many spans takes time, so another thread makes it. Until then nothing more of that observer is
/// read.
void Observers::Answer(const std::shared_ptr<ViewSink>& sink, const protocol::AskUpdates& ask) {
  if (const auto at = watchers_.find(sink); at != watchers_.end()) at->second = {.asks = true, .from = {}};
  Explanations chosen;
  for (const auto& [name, model] : executor_.models()) {
    if (!ask.model.empty() && ask.model != name) continue;
    const Explanations some = Choose(model->recorder.history(), ask);
    chosen.insert(chosen.end(), some.begin(), some.end());
  }
  explainer_.Run([sink, chosen = std::move(chosen)] {
    auto packet = MakePacket(protocol::Updates{.reason = {}, .json = ToJson(chosen)});
    if (!packet.ok()) packet = MakePacket(protocol::Updates{.reason = packet.status(), .json = {}});
    if (packet.ok()) sink->Show(*packet);
    sink->Continue();
  });
}

TimePoint Observers::next() const {
  const bool watched = page_ != nullptr || !watchers_.empty();
  return Changed() && watched ? std::min(next_, earliest_) : next_;
}

void Observers::ShowIfDue(TimePoint now) {
  if (now < next_ && (!Changed() || now < earliest_)) return;
  const TimePoint begin = Clock::now();
  next_ = begin + kViewInterval;
  earliest_ = begin + kLeastViewInterval;
  shown_ = executor_.changes();
  // Each question is answered, if only to say that nothing was said.
  for (auto& [sink, watcher] : watchers_) {
    if (!watcher.from) continue;
    const auto packet = MakePacket(sessions_.trace().From(*watcher.from));
    watcher.from.reset();
    if (packet.ok()) sink->Show(*packet);
  }
  const bool asked = std::ranges::any_of(watchers_, [](const auto& one) { return !one.second.asks; });
  if (page_ == nullptr && !asked) return;
  protocol::ClusterView view = View();
  const auto packet = asked ? MakePacket(view) : Result<SharedPacket>(nullptr);
  if (page_ != nullptr) {
    page_->Show(std::move(view));
    for (const auto& [name, model] : executor_.models())
      for (const auto& explained : model->recorder.TakeChanged()) page_->Explain(*explained);
  }
  // A large job's views take time: no more than a twentieth of this thread's.
  const TimePoint end = Clock::now();
  earliest_ = std::max(earliest_, end + 20 * (end - begin));
  if (!asked) return;
  if (!packet.ok()) {
    WC_LOG_LIMITED(kError, "cannot show the cluster: ", packet.status().message());
    return;
  }
  for (const auto& [sink, watcher] : watchers_)
    if (!watcher.asks) sink->Show(*packet);
}

protocol::ClusterView Observers::View() const {
  protocol::ClusterView view{.term = executor_.config().term, .job = executor_.config().job, .models = {}};
  for (const auto& [name, model] : executor_.models()) {
    protocol::ModelView& shown = view.models.emplace_back(ViewOf(model->state));
    shown.model = name;
    shown.senders = model->clock.senders;
    shown.routes = model->clock.routes;
    for (size_t i = 0; i < shown.workers.size(); ++i) {
      const Session* session = sessions_.Find(model->state.roster.workers()[i].session);
      if (session == nullptr) continue;
      shown.workers[i].host = session->hello.host;
      shown.workers[i].addresses = session->hello.addresses;
      shown.workers[i].connections = session->connections;
    }
  }
  return view;
}

}  // namespace weightcast::control
