#include "worker/preparation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "base/thread.h"
#include "worker/table_file.h"

namespace weightcast::worker {
namespace {

/// Connections that are being made at the same time.
constexpr size_t kThreads = 16;

}  // namespace

bool Preparation::Add(protocol::PeerLanding landing) {
  if (landing.map.epoch != plan_.epoch || landing.destination >= plan_.peers.size()) return false;
  landings_[landing.destination] = std::move(landing.map);
  return complete();
}

bool Preparation::complete() const {
  const auto wanted = std::count_if(plan_.peers.begin(), plan_.peers.end(),
                                    [](const protocol::Member& member) { return member.incarnation != 0; });
  return landings_.size() == static_cast<size_t>(wanted);
}

Result<std::shared_ptr<const SendPlan>> Preparation::Run(Session& session) {
  auto plan = std::make_shared<SendPlan>();
  WC_ASSIGN_OR_RETURN(plan->memory, memory_());
  WC_ASSIGN_OR_RETURN(plan->table,
                      LoadTable(plan_, session.settings().tables, plan::RankTable::Role::kTrainer));
  WC_RETURN_IF_ERROR(FindSources(*plan));
  plan->places.resize(plan->table.destination_shards.size());
  plan->parts.resize(plan->table.destination_shards.size());
  // The controller waits for `timeout`, and takes a source that has said nothing by then for hung.
  const Settings& settings = session.settings();
  const TimePoint deadline = Clock::now() + std::min(settings.connect_timeout, settings.timeout / 2);
  const size_t count = plan->table.peers.size();
  std::vector<std::optional<Connection>> connections(count);
  std::vector<Status> outcomes(count);
  ForEachInParallel(count, kThreads, [&](size_t i) {
    const auto& member = plan_.peers[static_cast<size_t>(plan->table.peers[i])];
    auto connection = Connect(session, member, deadline);
    outcomes[i] = connection.status();
    if (connection.ok()) connections[i] = std::move(*connection);
  });
  for (size_t i = 0; i < count; ++i) {
    const auto destination = static_cast<uint32_t>(plan->table.peers[i]);
    unreachable_ = destination;
    WC_RETURN_IF_ERROR(outcomes[i]);
    plan->targets.push_back({.destination = destination,
                             .name = protocol::ToString(plan_.peers[destination].name),
                             .connection = *connections[i],
                             .imported = std::make_shared<ImportedRegions>(*connections[i])});
    WC_RETURN_IF_ERROR(ImportOne(*plan, i));
  }
  unreachable_ = -1;
  plan->batches = CutIntoBatches(plan->table, plan->parts);
  return std::shared_ptr<const SendPlan>(std::move(plan));
}

Status Preparation::ImportOne(SendPlan& plan, size_t index) const {
  SendTarget& target = plan.targets[index];
  const auto landing = landings_.find(target.destination);
  if (landing == landings_.end())
    return Error(Code::kProtocol, "the plan does not say where the memory of ", target.name, " is",
                 "; use the same weightcast on all hosts");
  for (const std::string& descriptor : landing->second.regions) {
    if (Status status = target.imported->Add(descriptor); !status.ok())
      return Error(status.code(), "cannot use the memory of ", target.name, ": ", status.message());
  }
  const Status found =
      FindPlaces(plan, static_cast<int>(target.destination), landing->second, target.imported->regions());
  return found.ok() ? found : Error(found.code(), target.name, ": ", found.message());
}

/// In slices, so that a plan that is void does not wait for a host that does not answer.
Result<Connection> Preparation::Connect(Session& session, const protocol::Member& member,
                                        TimePoint deadline) const {
  const auto slice = std::max<Duration>(session.settings().lease, std::chrono::seconds(1));
  const std::string who = protocol::ToString(member.name);
  while (!cancelled_) {
    const TimePoint until = std::min(deadline, Clock::now() + slice);
    auto connection =
        session.endpoint().Connect(member.addresses, session.IdentityOf(member), until, member.key);
    if (connection.ok()) return connection;
    const bool again = connection.status().code() == Code::kTimedOut && until < deadline;
    if (!again) {
      return Error(connection.status().code(), session.text(), " cannot connect to ", who, ": ",
                   connection.status().message());
    }
  }
  return Error(Code::kCancelled, "connecting to ", who,
               " was ended because a newer plan came; the worker connects by the newer plan");
}

}  // namespace weightcast::worker
