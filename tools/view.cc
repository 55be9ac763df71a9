#include "tools/view.h"

#include "base/strings.h"
#include "tools/json.h"
#include "tools/output.h"

namespace weightcast::tools {
namespace {

std::string JoinedBySpace(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : " ") + text;
  return out;
}

std::string StateOf(const protocol::WorkerView& worker) {
  if (!worker.alive) return "LOST";
  if (worker.name.role == protocol::Role::kTrainer) return worker.prepared ? "prepared" : "joined";
  return std::string(protocol::NameOf(worker.state));
}

/// GB/s of what has bytes and seconds.
std::string Rate(const auto& moved) {
  return Fixed(moved.seconds > 0 ? static_cast<double>(moved.bytes) / moved.seconds / 1e9 : 0, 2);
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
                 Named(worker.version), JoinedBySpace(worker.addresses)});
  }
  if (!model.workers.empty()) out += "\n" + workers.ToString();
  Table connections({"connection to", "from"});
  for (const auto& worker : model.workers)
    for (const auto& connection : worker.connections) connections.Add({ToString(worker.name), connection});
  if (!connections.empty()) out += "\n" + connections.ToString();
  Table senders({"sender of the last update", "bytes", "seconds", "GB/s"});
  for (const auto& sender : model.senders)
    senders.Add({ToString(sender.name), Grouped(sender.bytes), Fixed(sender.seconds, 3), Rate(sender)});
  if (!senders.empty()) out += "\n" + senders.ToString();
  Table routes({"route of the last update", "to", "bytes", "seconds", "GB/s"});
  for (const auto& route : model.routes)
    routes.Add({ToString(route.sender), ToString(route.receiver), Grouped(route.bytes),
                Fixed(route.seconds, 3), Rate(route)});
  if (!routes.empty()) out += "\n" + routes.ToString();
  return out;
}

void AddVersion(Json& json, const Version& version) {
  json.Key("version").BeginObject().Key("run").Number(version.run).Key("number").Number(version.number);
  json.Key("label").String(version.label).EndObject();
}

void AddEngines(Json& json, const protocol::ModelView& model) {
  json.Key("engines").BeginArray();
  for (const auto& engine : model.engines) {
    json.BeginObject().Key("name").String(engine.name).Key("state").String(protocol::NameOf(engine.state));
    AddVersion(json, engine.version);
    json.Key("ranks").Number(engine.ranks).Key("last_error").String(engine.last_error);
    json.Key("control").String(engine.control).EndObject();
  }
  json.EndArray();
}

void AddWorkers(Json& json, const protocol::ModelView& model) {
  json.Key("workers").BeginArray();
  for (const auto& worker : model.workers) {
    json.BeginObject().Key("name").String(ToString(worker.name));
    json.Key("role").String(worker.name.role == protocol::Role::kTrainer ? "trainer" : "inference");
    json.Key("engine").String(worker.name.engine).Key("rank").Number(worker.name.rank);
    json.Key("host").String(worker.host).Key("alive").Bool(worker.alive);
    json.Key("prepared").Bool(worker.prepared).Key("state").String(StateOf(worker));
    AddVersion(json, worker.version);
    json.Key("addresses").BeginArray();
    for (const auto& address : worker.addresses) json.String(address);
    json.EndArray().Key("connections").BeginArray();
    for (const auto& connection : worker.connections) json.String(connection);
    json.EndArray().EndObject();
  }
  json.EndArray();
}

}  // namespace

std::string ViewText(const protocol::ClusterView& view) {
  std::string out = StrCat("job ", view.job, ", controller term ", view.term.number, "\n");
  if (view.models.empty()) out += "no worker has joined yet\n";
  for (const auto& model : view.models) out += "\n" + ModelText(model);
  return out;
}

std::string ViewJson(const protocol::ClusterView& view) {
  Json json;
  json.BeginObject().Key("job").String(view.job).Key("term").Number(view.term.number);
  json.Key("models").BeginArray();
  for (const auto& model : view.models) {
    json.BeginObject().Key("model").String(model.model).Key("phase").String(model.phase);
    json.Key("epoch").Number(model.epoch).Key("update").Number(model.update.sequence);
    AddVersion(json, model.version);
    json.Key("last_error").String(model.last_error);
    AddEngines(json, model);
    AddWorkers(json, model);
    json.Key("senders").BeginArray();
    for (const auto& sender : model.senders) {
      json.BeginObject().Key("name").String(ToString(sender.name)).Key("bytes").Number(sender.bytes);
      json.Key("seconds").Number(sender.seconds).EndObject();
    }
    json.EndArray().Key("routes").BeginArray();
    for (const auto& route : model.routes) {
      json.BeginObject().Key("sender").String(ToString(route.sender));
      json.Key("engine").String(route.receiver.engine).Key("rank").Number(route.receiver.rank);
      json.Key("bytes").Number(route.bytes).Key("seconds").Number(route.seconds).EndObject();
    }
    json.EndArray().EndObject();
  }
  return json.EndArray().EndObject().Line();
}

}  // namespace weightcast::tools
