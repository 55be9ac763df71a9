#include "worker/peer_source_machine.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace weightcast::worker {
namespace {

/// One transition: changes the state and collects what is to be done.
class Transition {
 public:
  explicit Transition(PeerSourceState& state) : s_(state) {}
  std::vector<PeerSourceAction> Take() { return std::move(actions_); }

  void operator()(const protocol::Welcome& welcome);
  void operator()(const protocol::Stop& stop);
  void operator()(const protocol::Release& release);
  void operator()(const PeerSourcePlanArrived& plan);
  void operator()(const PeerSourcePrepared& prepared);
  void operator()(const PeerSourcePlanFailed& failed);
  void operator()(const PeerSourceStart& event);
  void operator()(const SendEnded& ended);
  void operator()(const SendFenced& fenced);
  void operator()(const MemoryReclaimed& reclaimed);
  void operator()(const PeerSourceEnded& ended);

 private:
  void Do(PeerSourceAction action) { actions_.push_back(std::move(action)); }
  void Send(protocol::WorkerMessage message) { Do(SendMessage{std::move(message)}); }
  void Refuse(const StartOrder& start, Code code, const std::string& why);
  void SilenceAll();
  void Silence(Giving& giving);

  PeerSourceState& s_;
  std::vector<PeerSourceAction> actions_;
};

// --- The controller's messages ----------------------------------------------------------------------

void Transition::operator()(const protocol::Welcome& welcome) {
  if (s_.ended || welcome.term < s_.term) return;
  SilenceAll();
  s_.term = welcome.term;
  s_.epoch = 0;
  s_.prepared = false;
}

void Transition::operator()(const PeerSourcePlanArrived& plan) {
  if (s_.ended) return;
  SilenceAll();
  s_.epoch = plan.epoch;
  s_.prepared = false;
}

void Transition::operator()(const PeerSourceStart& event) {
  const StartOrder& start = event.start;
  if (s_.ended || start.update.term != s_.term) return;
  if (start.update.epoch != s_.epoch || !s_.prepared)
    return Refuse(start, Code::kCancelled,
                  StrCat("is not prepared to send by the plan of epoch ", start.update.epoch,
                         "; the controller plans again"));
  if (event.held != start.version || event.held.number < 0) {
    return Refuse(
        start, Code::kUnavailable,
        StrCat("cannot send version ", ToString(start.version), "; the version that others may read here is ",
               ToString(event.held), ", and the controller looks for another source"));
  }
  s_.givings.push_back({.update = start.update, .destination = start.destination, .part = start.part});
  Do(BeginSending{start});
}

void Transition::operator()(const protocol::Stop& stop) {
  for (Giving& giving : s_.givings)
    if (giving.update == stop.update && giving.destination == stop.destination) Silence(giving);
}

void Transition::operator()(const protocol::Release& release) {
  for (Giving& giving : s_.givings)
    if (giving.update == release.update) Silence(giving);
}

// --- The data plane and the rank itself ---------------------------------------------------------------

void Transition::operator()(const PeerSourcePrepared& prepared) {
  if (prepared.epoch != s_.epoch || s_.ended) return;
  s_.prepared = true;
  Send(protocol::Prepared{.epoch = s_.epoch});
}

void Transition::operator()(const PeerSourcePlanFailed& failed) {
  if (failed.epoch != s_.epoch || s_.ended) return;
  Send(protocol::Failed{.update = {.term = s_.term, .epoch = s_.epoch},
                        .destination = failed.destination,
                        .reason = failed.reason});
}

void Transition::operator()(const SendEnded& ended) {
  for (Giving& giving : s_.givings) {
    const bool same =
        giving.update == ended.update && giving.destination == ended.destination && giving.part == ended.part;
    if (!same || giving.quiet) continue;
    giving.quiet = true;  // Of what went well the receiver tells.
    if (!ended.status.ok()) Send(protocol::Failed{ended.update, int64_t{ended.destination}, ended.status});
  }
}

void Transition::operator()(const SendFenced& fenced) {
  std::erase_if(s_.givings, [&](const Giving& giving) {
    return giving.update == fenced.update && giving.destination == fenced.destination &&
           giving.part == fenced.part;
  });
}

void Transition::operator()(const MemoryReclaimed& reclaimed) {
  for (Giving& giving : s_.givings) {
    if (giving.quiet) continue;
    Silence(giving);
    if (!s_.ended) Send(protocol::Failed{giving.update, int64_t{giving.destination}, reclaimed.reason});
  }
  if (!reclaimed.leaves) return;
  s_.epoch = 0;
  s_.prepared = false;
}

void Transition::operator()(const PeerSourceEnded&) {
  s_.ended = true;
  SilenceAll();
  s_.epoch = 0;
  s_.prepared = false;
}

// --- Parts of transitions -------------------------------------------------------------------------------

void Transition::Refuse(const StartOrder& start, Code code, const std::string& why) {
  Send(protocol::Failed{start.update, int64_t{start.destination}, {code, StrCat("this rank ", why)}});
}

void Transition::SilenceAll() {
  for (Giving& giving : s_.givings) Silence(giving);
}

void Transition::Silence(Giving& giving) {
  if (std::exchange(giving.quiet, true)) return;
  Do(StopSending{giving.update, giving.destination});
}

}  // namespace

std::vector<PeerSourceAction> Advance(PeerSourceState& state, const PeerSourceEvent& event) {
  Transition transition(state);
  std::visit(transition, event);
  return transition.Take();
}

}  // namespace weightcast::worker
