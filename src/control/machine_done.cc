#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "control/machine.h"
#include "protocol/limits.h"

// The end of an update, and what trainers are told of it.
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

}  // namespace

protocol::Done Machine::MakeDone(const UpdateState& update) const {
  protocol::Done done{.update = update.id,
                      .version = update.version,
                      .met_policy = true,
                      .reason = {},
                      .engines = update.absent,
                      .senders = {},
                      .receivers = {},
                      .routes = {}};
  for (const Target& target : update.targets)
    done.engines.push_back({.engine = FindGroup(target.group)->name,
                            .committed = target.step == EngineStep::kDone,
                            .reason = target.reason,
                            .rank = target.rank});
  size_t committed = 0;
  for (const protocol::EngineOutcome& outcome : done.engines) {
    committed += outcome.committed ? 1 : 0;
    if (!outcome.committed && done.reason.ok()) done.reason = outcome.reason;
  }
  done.met_policy = committed > 0 && (!config_.together || committed == done.engines.size());
  if (done.met_policy) done.reason = Status::Ok();
  if (!done.met_policy && done.reason.ok())
    done.reason = {
        Code::kUnavailable,
        "no engine took part: none has joined, or all failed or were late; weightcast info shows them"};
  ListRows(update, done);
  return done;
}

/// Trainers first, by rank, also those that have sent nothing.
void Machine::ListRows(const UpdateState& update, protocol::Done& done) const {
  std::map<protocol::WorkerName, size_t> rows;
  const auto row_of = [&](const protocol::WorkerName& name) {
    const auto [at, added] = rows.try_emplace(name, done.senders.size());
    if (added) done.senders.push_back({.name = name});
    return at->second;
  };
  for (uint32_t rank = 0; rank < s_.roster.trainers().world_size; ++rank)
    row_of({.role = protocol::Role::kTrainer, .engine = "", .rank = rank});
  std::vector<std::optional<size_t>> row(update.senders.size());
  std::vector<std::pair<const Receiver*, const Route*>> routes;
  for (const Receiver& receiver : update.receivers) {
    if (receiver.step < RankStep::kReady) continue;
    done.receivers.push_back({.name = NameOf(receiver),
                              .bytes = receiver.bytes,
                              .seconds = receiver.seconds,
                              .compared = receiver.compared});
    done.bytes += receiver.bytes;
    done.compared += receiver.compared;
    done.compared_ranks += receiver.compared > 0 ? 1 : 0;
    for (const Route& route : receiver.routes) {
      std::optional<size_t>& known = row[route.sender];
      if (!known) known = row_of(update.senders[route.sender]);
      protocol::RankBytes& sender = done.senders[*known];
      sender.bytes += route.bytes;
      sender.seconds = std::max(sender.seconds, route.seconds);
      routes.emplace_back(&receiver, &route);
    }
  }
  KeepSlowest(done.senders, &protocol::RankBytes::seconds);
  KeepSlowest(done.receivers, &protocol::RankBytes::seconds);
  KeepSlowest(routes, [](const auto& one) { return one.second->seconds; });
  for (const auto& [receiver, route] : routes)
    done.routes.push_back({.sender = update.senders[route->sender],
                           .receiver = NameOf(*receiver),
                           .bytes = route->bytes,
                           .seconds = route->seconds});
}

protocol::WorkerName Machine::NameOf(const Receiver& receiver) const {
  return {
      .role = protocol::Role::kInference, .engine = FindGroup(receiver.group)->name, .rank = receiver.rank};
}

void Machine::Finish() {
  const UpdateState update = TakeUpdate();
  if (s_.plan.from_engines && !update.released)
    TellSources(protocol::Release{.update = update.id, .version = update.version});
  if (s_.plan.partial) s_.plan.stale = true;
  const protocol::Done done = MakeDone(update);
  bool any_committed = false;
  for (const Target& target : update.targets) {
    Group& group = ChangeGroup(target.group);
    if (target.step == EngineStep::kDone) {
      any_committed = true;
      group.tries = 0;
      group.last_error = Status::Ok();
      continue;
    }
    if (target.late) continue;
    group.tries = group.tried == update.version ? static_cast<uint8_t>(group.tries + 1) : uint8_t{1};
    group.tried = update.version;
    group.at_fault = target.rank >= 0;
    s_.plan.stale = true;  // The next epoch makes anew the connections that broke.
  }
  if (any_committed) s_.committed = protocol::LaterOf(s_.committed, update.version);
  if (!done.met_policy) s_.last_error = done.reason;
  TellTrainers(update, done);
  LogAndCount(done.met_policy ? "control.updates_committed" : "control.updates_failed",
              done.met_policy ? LogLevel::kInfo : LogLevel::kWarning, protocol::ToString(update.id),
              ": version ", ToString(update.version),
              done.met_policy ? " is served" : " failed: ", done.reason.message());
}

}  // namespace weightcast::control
