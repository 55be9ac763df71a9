#include "worker/peer_source_machine.h"

#include <utility>

#include "base/strings.h"

namespace weightcast::worker {
namespace {

/// Takes each event.
class PeerSourceEvents : public SourceEvents<PeerSourceState, PeerSourceAction> {
 public:
  using SourceEvents::SourceEvents;
  using SourceEvents::operator();

  // --- The controller's messages ----------------------------------------------------------------------

  void operator()(const protocol::Welcome& welcome) {
    if (s_.ended || welcome.term < s_.term) return;
    LeavePlan();
    s_.term = welcome.term;
  }

  void operator()(const PeerSourcePlanArrived& plan) {
    if (s_.ended) return;
    LeavePlan();
    s_.epoch = plan.epoch;
  }

  void operator()(const PeerSourceStart& event) {
    const StartOrder& start = event.start;
    if (s_.ended || start.update.term != s_.term) return;
    if (start.update.epoch != s_.epoch || !s_.prepared)
      return Refuse(start, Code::kCancelled,
                    StrCat("is not prepared to send by the plan of epoch ", start.update.epoch,
                           "; the controller plans again"));
    if (event.held != start.version || event.held.number < 0) {
      return Refuse(start, Code::kUnavailable,
                    StrCat("cannot send version ", ToString(start.version),
                           "; the version that others may read here is ", ToString(event.held),
                           ", and the controller looks for another source"));
    }
    s_.sendings.push_back({.update = start.update, .destination = start.destination, .part = start.part});
    t_.Add(BeginSending{start});
  }

  void operator()(const protocol::Release& release) {
    Stop([&](const Sending& sending) { return sending.update == release.update; });
  }

  // --- The data plane and the rank itself ---------------------------------------------------------------

  void operator()(const SendEnded& ended) {
    // Of what went well the receiver tells.
    if (EndSending(s_.sendings, ended) && !ended.status.ok())
      t_.Send(protocol::Failed{ended.update, int64_t{ended.destination}, ended.status});
  }

  void operator()(const SendFenced& fenced) {
    std::erase_if(s_.sendings, [&](const Sending& sending) { return sending.IsOf(fenced); });
  }

  void operator()(const MemoryReclaimed& reclaimed) {
    const auto tell = [&](const Sending& sending) {
      if (!s_.ended)
        t_.Send(protocol::Failed{sending.update, int64_t{sending.destination}, reclaimed.reason});
    };
    StopSendings(s_.sendings, t_.actions, EverySending, tell);
    if (reclaimed.leaves) LeavePlan();
  }

  void operator()(const SessionEnded&) {
    s_.ended = true;
    LeavePlan();
  }

 private:
  void Refuse(const StartOrder& start, Code code, const std::string& why) {
    t_.Send(protocol::Failed{start.update, int64_t{start.destination}, Error(code, "this rank ", why)});
  }
};

}  // namespace

std::vector<PeerSourceAction> Advance(PeerSourceState& state, const PeerSourceEvent& event) {
  Transition<PeerSourceState, PeerSourceAction> transition{state};
  std::visit(PeerSourceEvents(transition), event);
  return std::move(transition.actions);
}

}  // namespace weightcast::worker
