#include "tools/info/view.h"

#include "base/strings.h"
#include "tools/common/json.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

std::string StateOf(const protocol::WorkerView& worker) {
  if (!worker.alive) return "LOST";
  if (worker.name.role == protocol::Role::kTrainer) return worker.prepared ? "prepared" : "joined";
  return std::string(protocol::NameOf(worker.state));
}

/// GB/s of what has bytes and seconds.
std::string Rate(const auto& moved) {
  return Decimal(moved.seconds > 0 ? static_cast<double>(moved.bytes) / moved.seconds / 1e9 : 0, 2);
}

std::string Named(const Version& version) {
  return version.label.empty() ? ToString(version) : StrCat(ToString(version), " (", version.label, ")");
}

std::string ModelText(const protocol::ModelView& model) {
  std::string out = StrCat("model ", model.model, ": ", model.phase, ", version ", Named(model.version),
                           ", plan epoch ", model.epoch, ", ", ToString(model.update), "\n");
  if (!model.last_error.empty()) out += StrCat("last error: ", model.last_error, "\n");
  Table engines({"engine", "state", "version", "ranks", "last error"});
  for (const auto& engine : model.engines) {
    const std::string control = engine.control.empty() ? "" : StrCat(" (", engine.control, ")");
    engines.Add({engine.name, StrCat(protocol::NameOf(engine.state), control), Named(engine.version),
                 StrCat(engine.ranks), engine.last_error});
  }
  if (!model.engines.empty()) out += "\n" + engines.ToString();
  Table workers({"worker", "host", "state", "prepared", "version", "addresses"});
  for (const auto& worker : model.workers) {
    workers.Add({ToString(worker.name), worker.host, StateOf(worker), worker.prepared ? "yes" : "no",
                 Named(worker.version), Join(worker.addresses, " ")});
  }
  if (!model.workers.empty()) out += "\n" + workers.ToString();
  Table connections({"connection to", "from"});
  for (const auto& worker : model.workers)
    for (const auto& connection : worker.connections) connections.Add({ToString(worker.name), connection});
  if (!connections.empty()) out += "\n" + connections.ToString();
  Table senders({"sender of the last update", "bytes", "seconds", "GB/s"});
  for (const auto& sender : model.senders)
    senders.Add({ToString(sender.name), Grouped(sender.bytes), Decimal(sender.seconds, 3), Rate(sender)});
  if (!senders.empty()) out += "\n" + senders.ToString();
  Table routes({"route of the last update", "to", "bytes", "seconds", "GB/s"});
  for (const auto& route : model.routes)
    routes.Add({ToString(route.sender), ToString(route.receiver), Grouped(route.bytes),
                Decimal(route.seconds, 3), Rate(route)});
  if (!routes.empty()) out += "\n" + routes.ToString();
  return out;
}

Json VersionJson(const Version& version) {
  return {{"run", version.run}, {"number", version.number}, {"label", version.label}};
}

Json EngineJson(const protocol::EngineView& engine) {
  return {{"name", engine.name},
          {"state", protocol::NameOf(engine.state)},
          {"version", VersionJson(engine.version)},
          {"ranks", engine.ranks},
          {"last_error", engine.last_error},
          {"control", engine.control}};
}

Json WorkerJson(const protocol::WorkerView& worker) {
  return {{"name", ToString(worker.name)},
          {"role", worker.name.role == protocol::Role::kTrainer ? "trainer" : "inference"},
          {"engine", worker.name.engine},
          {"rank", worker.name.rank},
          {"host", worker.host},
          {"alive", worker.alive},
          {"prepared", worker.prepared},
          {"state", StateOf(worker)},
          {"version", VersionJson(worker.version)},
          {"addresses", worker.addresses},
          {"connections", worker.connections}};
}

Json ModelJson(const protocol::ModelView& model) {
  Json json{{"model", model.model},
            {"phase", model.phase},
            {"epoch", model.epoch},
            {"update", model.update.sequence},
            {"version", VersionJson(model.version)},
            {"last_error", model.last_error},
            {"engines", JsonArray(model.engines, EngineJson)},
            {"workers", JsonArray(model.workers, WorkerJson)}};
  json["senders"] = JsonArray(model.senders, [](const auto& sender) -> Json {
    return {{"name", ToString(sender.name)}, {"bytes", sender.bytes}, {"seconds", sender.seconds}};
  });
  json["routes"] = JsonArray(model.routes, [](const auto& route) -> Json {
    return {{"sender", ToString(route.sender)},
            {"engine", route.receiver.engine},
            {"rank", route.receiver.rank},
            {"bytes", route.bytes},
            {"seconds", route.seconds}};
  });
  return json;
}

}  // namespace

std::string ViewText(const protocol::ClusterView& view) {
  std::string out = StrCat("job ", view.job, ", controller term ", view.term.number, "\n");
  if (view.models.empty()) out += "no worker has joined yet\n";
  for (const auto& model : view.models) out += "\n" + ModelText(model);
  return out;
}

std::string ViewJson(const protocol::ClusterView& view) {
  return JsonLine(
      {{"job", view.job}, {"term", view.term.number}, {"models", JsonArray(view.models, ModelJson)}});
}

}  // namespace weightcast::tools
