#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "control/core.h"
#include "control/explain_json.h"

// What the controller tells of past updates (docs/explain.md).
namespace weightcast::control {
namespace {

/// From the first publication to the end of an update this thread wakes so often, and did not run if it comes
/// so much later.
constexpr Duration kLookInterval = std::chrono::milliseconds(10);
constexpr Duration kStall = std::chrono::milliseconds(50);

}  // namespace

bool Core::AnyUnderWay() const {
  return std::ranges::any_of(models_, [](const auto& entry) {
    return entry.second->recorder.open() || entry.second->recorder.awaited();
  });
}

void Core::WatchStalls(bool watched) {
  const TimePoint now = Clock::now();
  if (watched && now - next_look_ > kStall)
    for (auto& [name, model] : models_) model->recorder.Stalled(next_look_, now);
  if (!watched || now >= next_look_) next_look_ = now + kLookInterval;
}

void Core::OnAsk(const std::shared_ptr<ViewSink>& sink, const protocol::AskTrace& ask) {
  sink->Continue();
  const auto at = watchers_.find(sink);
  if (at == watchers_.end()) return;
  at->second = {.asks = true, .from = ask.from};
  view_changed_ = true;
}

/// JSON of many spans takes time, so another thread makes it. Until then nothing more of that observer is
/// read.
void Core::OnAsk(const std::shared_ptr<ViewSink>& sink, const protocol::AskUpdates& ask) {
  if (const auto at = watchers_.find(sink); at != watchers_.end()) at->second = {.asks = true, .from = {}};
  Explanations chosen;
  for (const auto& [name, model] : models_) {
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

}  // namespace weightcast::control
