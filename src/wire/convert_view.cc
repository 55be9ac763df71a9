#include "wire/control.pb.h"
#include "wire/convert.h"

namespace weightcast::wire {
namespace {

// Their own names would hide those of the namespace: hence wire::.
void Put(const WorkerView& from, pb::WorkerView& to) {
  wire::Put(from.name, *to.mutable_name());
  to.set_host(from.host);
  to.set_incarnation(from.incarnation);
  to.set_alive(from.alive);
  to.set_prepared(from.prepared);
  to.set_state(static_cast<uint32_t>(from.state));
  wire::Put(from.version, *to.mutable_version());
  for (const auto& address : from.addresses) to.add_addresses(address);
  for (const auto& connection : from.connections) to.add_connections(connection);
}
void Get(const pb::WorkerView& from, WorkerView& to, Check& check) {
  wire::Get(from.name(), to.name, check);
  check.Name(from.host(), kMaxNameBytes, "host");
  to.host = from.host();
  to.incarnation = from.incarnation();
  to.alive = from.alive();
  to.prepared = from.prepared();
  to.state = check.Value(from.state(), EngineState::kFailed, "state");
  wire::Get(from.version(), to.version, check);
  GetNames(from.addresses(), to.addresses, kMaxAddresses, kMaxNameBytes, "addresses", check);
  GetNames(from.connections(), to.connections, kMaxWorkers, kMaxConnectionBytes, "connections", check);
}

void Put(const EngineView& from, pb::EngineView& to) {
  to.set_name(from.name);
  to.set_ranks(from.ranks);
  to.set_incarnation(from.incarnation);
  to.set_state(static_cast<uint32_t>(from.state));
  wire::Put(from.version, *to.mutable_version());
  to.set_last_error(from.last_error.substr(0, kMaxStatusBytes));
  to.set_control(from.control);
}
void Get(const pb::EngineView& from, EngineView& to, Check& check) {
  check.Name(from.name(), kMaxNameBytes, "engine");
  check.Size(from.last_error().size(), kMaxStatusBytes, "last_error");
  to.name = from.name();
  to.ranks = from.ranks();
  to.incarnation = from.incarnation();
  to.state = check.Value(from.state(), EngineState::kFailed, "state");
  wire::Get(from.version(), to.version, check);
  to.last_error = from.last_error();
  check.Name(from.control(), kMaxNameBytes, "control");
  to.control = from.control();
}

void Put(const ModelView& from, pb::ModelView& to) {
  to.set_model(from.model);
  to.set_epoch(from.epoch);
  to.set_phase(from.phase);
  wire::Put(from.version, *to.mutable_version());
  wire::Put(from.update, *to.mutable_update());
  for (const auto& worker : from.workers) Put(worker, *to.add_workers());
  for (const auto& engine : from.engines) Put(engine, *to.add_engines());
  to.set_last_error(from.last_error.substr(0, kMaxStatusBytes));
  PutAll(from.senders, to.mutable_senders());
  PutAll(from.routes, to.mutable_routes());
}
void Get(const pb::ModelView& from, ModelView& to, Check& check) {
  check.Name(from.model(), kMaxNameBytes, "model");
  check.Name(from.phase(), kMaxNameBytes, "phase");
  check.Size(from.last_error().size(), kMaxStatusBytes, "last_error");
  if (!check.Count(static_cast<size_t>(from.workers_size()), kMaxWorkers, "workers") ||
      !check.Count(static_cast<size_t>(from.engines_size()), kMaxWorkers, "engines")) {
    return;
  }
  to.model = from.model();
  to.epoch = from.epoch();
  to.phase = from.phase();
  wire::Get(from.version(), to.version, check);
  wire::Get(from.update(), to.update, check);
  for (const auto& worker : from.workers()) Get(worker, to.workers.emplace_back(), check);
  for (const auto& engine : from.engines()) Get(engine, to.engines.emplace_back(), check);
  to.last_error = from.last_error();
  GetAll(from.senders(), to.senders, kMaxWorkers, "senders", check);
  GetAll(from.routes(), to.routes, kMaxPairs, "routes", check);
}

}  // namespace

void Put(const ClusterView& from, pb::ClusterView& to) {
  Put(from.term, *to.mutable_term());
  to.set_job(from.job);
  for (const auto& model : from.models) Put(model, *to.add_models());
}

void Get(const pb::ClusterView& from, ClusterView& to, Check& check) {
  check.Name(from.job(), kMaxNameBytes, "job");
  if (!check.Count(static_cast<size_t>(from.models_size()), kMaxModels, "models")) return;
  Get(from.term(), to.term, check);
  to.job = from.job();
  for (const auto& model : from.models()) Get(model, to.models.emplace_back(), check);
}

}  // namespace weightcast::wire
