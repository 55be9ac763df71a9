#include "control/update_report.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "protocol/limits.h"

namespace weightcast::control {
namespace {

/// As many as a Done lists, in the order in which they are.
template <typename Row, typename Seconds>
void KeepSlowest(std::vector<Row>& rows, const Seconds& seconds) {
  if (rows.size() <= protocol::kMaxDoneRows) return;
  std::vector<size_t> chosen(rows.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  const auto last = chosen.begin() + protocol::kMaxDoneRows;
  std::nth_element(chosen.begin(), last, chosen.end(), [&](size_t a, size_t b) {
    const double first = std::invoke(seconds, rows[a]);
    const double second = std::invoke(seconds, rows[b]);
    return first > second || (first == second && a < b);
  });
  chosen.erase(last, chosen.end());
  std::ranges::sort(chosen);
  std::vector<Row> kept;
  for (const size_t at : chosen) kept.push_back(std::move(rows[at]));
  rows = std::move(kept);
}

protocol::WorkerName NameOf(const Roster& roster, const Arrival& arrival) {
  return {.role = protocol::Role::kInference,
          .engine = roster.FindGroup(arrival.group)->name,
          .rank = arrival.rank};
}

/// Trainers first, by rank, also those that have sent nothing.
void ListRows(const Roster& roster, const UpdateReport& report, protocol::Done& done) {
  std::map<protocol::WorkerName, size_t> rows;
  const auto row_of = [&](const protocol::WorkerName& name) {
    const auto [at, added] = rows.try_emplace(name, done.senders.size());
    if (added) done.senders.push_back({.name = name});
    return at->second;
  };
  for (uint32_t rank = 0; rank < roster.trainers().world_size; ++rank)
    row_of({.role = protocol::Role::kTrainer, .engine = "", .rank = rank});
  std::vector<std::optional<size_t>> row(report.senders.size());
  std::vector<std::pair<const Arrival*, const Route*>> routes;
  for (const Arrival& arrival : report.arrivals) {
    done.receivers.push_back({.name = NameOf(roster, arrival),
                              .bytes = arrival.bytes,
                              .seconds = arrival.seconds,
                              .compared = arrival.compared});
    done.bytes += arrival.bytes;
    done.compared += arrival.compared;
    done.compared_ranks += arrival.compared > 0 ? 1 : 0;
    for (const Route& route : arrival.routes) {
      std::optional<size_t>& known = row[route.sender];
      if (!known) known = row_of(report.senders[route.sender]);
      protocol::RankBytes& sender = done.senders[*known];
      sender.bytes += route.bytes;
      sender.seconds = std::max(sender.seconds, route.seconds);
      routes.emplace_back(&arrival, &route);
    }
  }
  KeepSlowest(done.senders, &protocol::RankBytes::seconds);
  KeepSlowest(done.receivers, &protocol::RankBytes::seconds);
  KeepSlowest(routes, [](const auto& one) { return one.second->seconds; });
  for (const auto& [arrival, route] : routes)
    done.routes.push_back({.sender = report.senders[route->sender],
                           .receiver = NameOf(roster, *arrival),
                           .bytes = route->bytes,
                           .seconds = route->seconds});
}

}  // namespace

protocol::Done MakeDone(const MachineConfig& config, const Roster& roster, const UpdateReport& report) {
  protocol::Done done;
  done.update = report.id;
  done.version = report.version;
  done.engines = report.absent;
  for (const EngineEnd& end : report.engines)
    done.engines.push_back({.engine = roster.FindGroup(end.group)->name,
                            .committed = end.committed,
                            .reason = end.reason,
                            .rank = end.rank});
  size_t committed = 0;
  for (const protocol::EngineOutcome& outcome : done.engines) {
    committed += outcome.committed ? 1 : 0;
    if (!outcome.committed && done.reason.ok()) done.reason = outcome.reason;
  }
  done.met_policy = committed > 0 && (!config.together || committed == done.engines.size());
  if (done.met_policy) done.reason = Status::Ok();
  if (!done.met_policy && done.reason.ok())
    done.reason = {Code::kUnavailable,
                   "no engine took part: none has joined, or all failed or were late; `weightcast info "
                   "--controller HOST:PORT` shows which: start it, or see its log"};
  ListRows(roster, report, done);
  return done;
}

}  // namespace weightcast::control
