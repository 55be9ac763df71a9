#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/controller_messages.h"

/// What `weightcast info` shows.
namespace weightcast::protocol {

struct WorkerView {
  WorkerName name;
  std::string host = {};
  uint64_t incarnation = 0;
  bool alive = false;
  bool prepared = false;
  EngineState state = EngineState::kJoining;
  Version version;
  std::vector<std::string> addresses = {};
  std::vector<std::string> connections = {};  ///< Of Prepared.
};
constexpr auto Fields(Is<WorkerView> auto& m, auto&& visit) {
  return visit(F("name", m.name), F("host", m.host, Name{}), F("incarnation", m.incarnation, Fixed{}),
               F("alive", m.alive), F("prepared", m.prepared), F("state", m.state), F("version", m.version),
               F("addresses", m.addresses, kAddresses), F("connections", m.connections, kConnections));
}

struct EngineView {
  std::string name;
  uint64_t incarnation = 0;  ///< Of its rank 0; 0: not here.
  uint32_t ranks = 0;
  EngineState state = EngineState::kJoining;
  Version version;
  std::string last_error;
  std::string control = {};  ///< How its EngineControl stands: "resumed", "pausing" ...; empty: it has none.
};
constexpr auto Fields(Is<EngineView> auto& m, auto&& visit) {
  return visit(F("name", m.name, Name{}), F("incarnation", m.incarnation, Fixed{}), F("ranks", m.ranks),
               F("state", m.state), F("version", m.version), F("last_error", m.last_error, Cut{}),
               F("control", m.control, Name{}));
}

struct ModelView {
  std::string model;
  uint32_t epoch = 0;
  std::string phase;  ///< "waiting for workers", "planned", "granting", "writing", "committing" ...
  Version version;    ///< Last committed.
  UpdateId update;
  std::vector<WorkerView> workers;
  std::vector<EngineView> engines;
  std::string last_error;
  std::vector<RankBytes> senders;  ///< Of the last update, as in Done.
  std::vector<RouteBytes> routes;  ///< Likewise.
};
constexpr auto Fields(Is<ModelView> auto& m, auto&& visit) {
  return visit(F("model", m.model, Name{}), F("epoch", m.epoch), F("phase", m.phase, Name{}),
               F("version", m.version), F("update", m.update), F("workers", m.workers, List{kMaxWorkers}),
               F("engines", m.engines, List{kMaxWorkers}), F("last_error", m.last_error, Cut{}),
               F("senders", m.senders, List{kMaxDoneRows}), F("routes", m.routes, List{kMaxDoneRows}));
}

struct ClusterView {
  Term term;
  std::string job;
  std::vector<ModelView> models;
};
constexpr auto Fields(Is<ClusterView> auto& m, auto&& visit) {
  return visit(F("term", m.term), F("job", m.job, Name{}), F("models", m.models, List{kMaxModels}));
}

}  // namespace weightcast::protocol
