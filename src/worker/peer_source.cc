#include "worker/peer_source.h"

#include <utility>
#include <variant>

#include "base/log.h"

namespace weightcast::worker {

PeerSource::PeerSource(Session& session, Background& background, Callbacks callbacks)
    : session_(session),
      callbacks_(std::move(callbacks)),
      sender_(session, background,
              {.send = callbacks_.send, .feed = [this](PlanSender::Event event) { OnSending(event); }}) {}

void PeerSource::OnPlan(protocol::Plan plan, const std::shared_ptr<const LandingMemory>& memory) {
  Dispatch(PeerSourcePlanArrived{plan.epoch});
  sender_.OnPlan(std::move(plan), [this, memory]() -> Result<std::shared_ptr<const SourceMemory>> {
    if (memory == nullptr)
      return Status(Code::kInvalidArgument,
                    "this inference rank has registered nothing, or is suspended; call register or resume");
    return RegisterSources(session_.endpoint(), memory, session_.settings());
  });
}

void PeerSource::OnOtherPlan(uint32_t epoch) {
  if (epoch > state_.epoch && !Lends(state_)) Dispatch(MemoryReclaimed{.reason = {}, .leaves = true});
}

void PeerSource::OnStart(const StartOrder& start) { Dispatch(PeerSourceStart{start, callbacks_.held()}); }

void PeerSource::OnSending(PlanSender::Event event) {
  if (const auto* failed = std::get_if<SendPlanFailed>(&event))
    WC_LOG(kWarning, session_.text(), ": plan to send in epoch ", failed->epoch, ": ",
           failed->reason.message());
  if (std::holds_alternative<SendPlanReady>(event)) {
    for (const SendTarget& target : sender_.plan()->targets)
      WC_LOG(kInfo, session_.text(), ": sends to ", target.name, ": ", target.connection.Describe());
  }
  std::visit([this](const auto& what) { Dispatch(what); }, event);
}

void PeerSource::Dispatch(const PeerSourceEvent& event) {
  const bool lent = Lends(state_);
  auto actions = Advance(state_, event);
  if (state_.epoch == 0) sender_.DropPlan();
  if (lent != Lends(state_)) callbacks_.on_lent(!lent);
  for (auto& action : actions) std::visit([this](auto& a) { Execute(a); }, action);
}

std::unique_ptr<Sender> PeerSource::End() {
  Dispatch(SessionEnded{});
  return sender_.End();
}

}  // namespace weightcast::worker
