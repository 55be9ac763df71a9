#include "control/page_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"

namespace weightcast::control {
namespace {

using Json = nlohmann::ordered_json;

Json VersionJson(const Version& version) {
  if (version.number < 0) return nullptr;
  return {{"run", version.run},
          {"number", version.number},
          {"label", version.label},
          {"text", ToString(version)}};
}

Json MovedJson(uint64_t bytes, double seconds) { return {{"bytes", bytes}, {"seconds", seconds}}; }

Json EngineJson(const protocol::EngineView& engine) {
  return {{"name", engine.name},
          {"state", protocol::NameOf(engine.state)},
          {"version", VersionJson(engine.version)},
          {"ranks", engine.ranks},
          {"control", engine.control},
          {"last_error", engine.last_error}};
}

Json WorkerJson(const protocol::WorkerView& worker) {
  const bool trainer = worker.name.role == protocol::Role::kTrainer;
  Json json = {{"name", ToString(worker.name)}, {"rank", worker.name.rank}};
  if (!trainer) json["engine"] = worker.name.engine;
  json["host"] = worker.host;
  json["alive"] = worker.alive;
  json["prepared"] = worker.prepared;
  if (!trainer) json["state"] = protocol::NameOf(worker.state);
  json["version"] = VersionJson(worker.version);
  json["addresses"] = worker.addresses;
  return json;
}

/// A rank tells of each connection as "<source>: <path>".
std::pair<std::string, std::string> SourceAndPath(const std::string& text,
                                                  const std::map<std::string, bool>& names) {
  for (size_t at = text.find(": "); at != std::string::npos; at = text.find(": ", at + 1))
    if (names.contains(text.substr(0, at))) return {text.substr(0, at), text.substr(at + 2)};
  const size_t first = text.find(": ");
  if (first == std::string::npos) return {"", text};
  return {text.substr(0, first), text.substr(first + 2)};
}

/// All connections, each with what the last update moved over it.
Json ConnectionsJson(const protocol::ModelView& model) {
  std::map<std::string, bool> names;
  for (const auto& worker : model.workers) names[ToString(worker.name)] = true;
  std::map<std::pair<std::string, std::string>, const protocol::RouteBytes*> moved;
  for (const auto& route : model.routes) moved[{ToString(route.sender), ToString(route.receiver)}] = &route;
  Json all = Json::array();
  for (const auto& worker : model.workers) {
    for (const std::string& text : worker.connections) {
      auto [source, path] = SourceAndPath(text, names);
      Json json = {{"from", source}, {"to", ToString(worker.name)}, {"path", path}};
      const auto route = moved.find({source, ToString(worker.name)});
      json["last"] =
          route == moved.end() ? Json(nullptr) : MovedJson(route->second->bytes, route->second->seconds);
      all.push_back(std::move(json));
    }
  }
  return all;
}

Json ModelJson(const protocol::ModelView& model) {
  Json json = {{"model", model.model},
               {"phase", model.phase},
               {"epoch", model.epoch},
               {"version", VersionJson(model.version)},
               {"update", model.update.sequence},
               {"last_error", model.last_error},
               {"engines", JsonArray(model.engines, EngineJson)},
               {"trainers", Json::array()},
               {"ranks", Json::array()}};
  for (const auto& worker : model.workers)
    json[worker.name.role == protocol::Role::kTrainer ? "trainers" : "ranks"].push_back(WorkerJson(worker));
  json["connections"] = ConnectionsJson(model);
  return json;
}

Json OutcomeJson(const protocol::EngineOutcome& engine) {
  return {{"name", engine.engine}, {"committed", engine.committed}, {"reason", engine.reason.message()}};
}

}  // namespace

std::string StateJson(const protocol::ClusterView& view) {
  return JsonText(
      Json{{"job", view.job}, {"term", view.term.number}, {"models", JsonArray(view.models, ModelJson)}});
}

std::string UpdateJson(const UpdateRecord& record) {
  const protocol::Done& done = record.done;
  Json json = {{"number", record.number},
               {"model", record.model},
               {"update", done.update.sequence},
               {"version", VersionJson(done.version)},
               {"ended", record.ended},
               {"committed", done.met_policy},
               {"reason", done.reason.message()},
               {"seconds", done.seconds},
               {"bytes", done.bytes}};
  const Verdict& verdict = record.verdict;
  if (!verdict.text.empty())
    json["verdict"] = {{"slow", verdict.slow}, {"text", verdict.text}, {"remedy", verdict.remedy}};
  json["moments"] = JsonArray(record.moments, [](const auto& moment) -> Json {
    return {{"name", moment.first}, {"seconds", moment.second}};
  });
  json["engines"] = JsonArray(done.engines, OutcomeJson);
  json["senders"] = JsonArray(done.senders, [](const auto& sender) {
    Json moved = MovedJson(sender.bytes, sender.seconds);
    moved["name"] = ToString(sender.name);
    return moved;
  });
  json["routes"] = JsonArray(done.routes, [](const auto& route) {
    Json moved = MovedJson(route.bytes, route.seconds);
    moved["from"] = ToString(route.sender);
    moved["to"] = ToString(route.receiver);
    return moved;
  });
  return JsonText(json);
}

}  // namespace weightcast::control
