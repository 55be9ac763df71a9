#include "transport/tcp/opening.h"

#include <algorithm>
#include <string>

#include "base/strings.h"

namespace weightcast::transport::tcp {

void Opening::Connect() {
  started_.resize(terms_.lanes);
  connectors_.reserve(terms_.lanes);
  for (uint32_t lane = 0; lane < terms_.lanes; ++lane) connectors_.emplace_back(poller_, terms_, lane, 0);
}

void Opening::OnConnectReady(uint32_t lane, size_t attempt, TimePoint now) {
  if (lane < connectors_.size()) connectors_[lane].OnReady(attempt, now);
}

Status Opening::Step(TimePoint now) {
  for (LaneConnector& connector : connectors_) {
    if (now >= connector.NextStep()) connector.Step(now);
    if (connector.failed()) {
      return Error(Code::kUnavailable,
                   "no address of the peer answers; check the firewall and settings "
                   "bind, interface and advertise (",
                   connector.report(), ")");
    }
  }
  if (!connectors_.empty() && std::ranges::all_of(connectors_, &LaneConnector::welcomed)) {
    for (uint32_t lane = 0; lane < terms_.lanes; ++lane) started_[lane] = connectors_[lane].TakeStarted();
    connectors_.clear();
    return Status::Ok();
  }
  if (now < terms_.deadline) return Status::Ok();
  std::string tried;
  for (const LaneConnector& connector : connectors_)
    tried = connector.report().empty() ? tried : StrCat(" (", connector.report(), ")");
  return Error(Code::kTimedOut,
               "not all lanes were connected within half of setting connect_timeout; check the firewall "
               "and settings bind, interface and advertise",
               tried);
}

TimePoint Opening::NextStep() const {
  TimePoint next = terms_.deadline;
  for (const LaneConnector& connector : connectors_) next = std::min(next, connector.NextStep());
  return next;
}

bool Opening::complete() const { return std::ranges::all_of(started_, &UniqueFd::valid); }

}  // namespace weightcast::transport::tcp
