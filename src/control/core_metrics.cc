#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "control/core.h"

// What the controller tells Prometheus beside its counters.
namespace weightcast::control {
namespace {

/// A controller that is too busy to answer within this is left out of one scrape.
constexpr auto kViewPatience = std::chrono::milliseconds(500);

void TellModel(const protocol::ModelView& model, std::vector<trace::Metric>& metrics) {
  const auto tell = [&](std::string name, double value, trace::Labels labels) {
    labels.insert(labels.begin(), {"model", model.model});
    metrics.push_back({std::move(name), value, std::move(labels), /*rises=*/false});
  };
  tell("control.version", static_cast<double>(model.version.number), {});
  tell("control.epoch", model.epoch, {});
  std::map<std::string, int> alive{{"trainer", 0}, {"inference", 0}};
  for (const protocol::WorkerView& worker : model.workers)
    alive[worker.name.role == protocol::Role::kTrainer ? "trainer" : "inference"] += worker.alive ? 1 : 0;
  for (const auto& [role, count] : alive) tell("control.workers", count, {{"role", role}});
  for (const protocol::EngineView& engine : model.engines) {
    tell("control.engine_version", static_cast<double>(engine.version.number), {{"engine", engine.name}});
    tell("control.engine_state", 1,
         {{"engine", engine.name}, {"state", std::string(protocol::NameOf(engine.state))}});
  }
}

}  // namespace

void Core::Collect(std::vector<trace::Metric>& metrics) {
  const auto answer = std::make_shared<std::promise<protocol::ClusterView>>();
  auto view = answer->get_future();
  if (!mailbox_->Post([this, answer] { answer->set_value(View()); })) return;
  if (view.wait_for(kViewPatience) != std::future_status::ready) return;
  const protocol::ClusterView shown = view.get();
  metrics.push_back({"control.term", static_cast<double>(shown.term.number), {}, /*rises=*/false});
  for (const protocol::ModelView& model : shown.models) TellModel(model, metrics);
}

}  // namespace weightcast::control
