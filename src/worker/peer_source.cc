#include "worker/peer_source.h"

#include <utility>
#include <variant>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::worker {

// --- Plans --------------------------------------------------------------------------------------------

void PeerSource::OnPlan(protocol::Plan plan, const std::shared_ptr<const LandingMemory>& memory) {
  if (preparation_ != nullptr) preparation_->Cancel();
  plan_.reset();
  Feed(PeerSourcePlanArrived{plan.epoch});
  preparation_ = std::make_shared<Preparation>(
      std::move(plan), [this, memory]() -> Result<std::shared_ptr<const SourceMemory>> {
        if (memory == nullptr)
          return Status(Code::kInvalidArgument, "nothing is registered here; call Register first");
        return RegisterSources(session_.endpoint(), memory, session_.settings());
      });
  if (preparation_->complete()) Prepare();
}

void PeerSource::OnLanding(protocol::PeerLanding landing) {
  if (preparation_ != nullptr && preparation_->Add(std::move(landing))) Prepare();
}

void PeerSource::Prepare() {
  background_.Run([this, preparation = preparation_] {
    auto plan = preparation->Run(session_);
    session_.loop().Post([this, preparation, plan] { OnPrepared(*preparation, plan); });
  });
}

void PeerSource::OnPrepared(const Preparation& preparation,
                            const Result<std::shared_ptr<const SendPlan>>& plan) {
  const uint32_t epoch = preparation.epoch();
  if (epoch != state_.epoch || state_.ended) return;
  Status status = MakeSender();
  if (status.ok()) status = plan.ok() ? sender_->CheckStaging(**plan) : plan.status();
  if (!status.ok()) {
    WC_LOG(kWarning, session_.text(), ": plan to send in epoch ", epoch, ": ", status.message());
    return Feed(SendPlanFailed{epoch, status, preparation.unreachable()});
  }
  plan_ = *plan;
  for (const SendTarget& target : plan_->targets)
    WC_LOG(kInfo, session_.text(), ": sends to ", target.name, ": ", target.connection.Describe());
  Feed(SendPlanReady{epoch});
}

/// Once.
Status PeerSource::MakeSender() {
  if (sender_ != nullptr) return Status::Ok();
  Sender::Callbacks callbacks;
  callbacks.on_ended = [this](const SendEnded& ended) {
    session_.loop().Post([this, ended] { Feed(ended); });
  };
  callbacks.on_fenced = [this](const SendFenced& fenced) {
    session_.loop().Post([this, fenced] {
      Tell(report_.Fenced(fenced));
      Feed(fenced);
    });
  };
  callbacks.on_digests = [this](protocol::SentDigests digests) {
    session_.client().Send(std::move(digests));
  };
  WC_ASSIGN_OR_RETURN(sender_,
                      Sender::Create(session_.endpoint(), session_.settings(), std::move(callbacks)));
  return Status::Ok();
}

void PeerSource::OnOtherPlan(uint32_t epoch) {
  if (epoch > state_.epoch && !Lends(state_)) Feed(MemoryReclaimed{.reason = {}, .leaves = true});
}

// --- Giving -------------------------------------------------------------------------------------------

void PeerSource::OnStart(const StartOrder& start) { Feed(PeerSourceStart{start, callbacks_.held()}); }

void PeerSource::Feed(const PeerSourceEvent& event) {
  const bool lent = Lends(state_);
  auto actions = Advance(state_, event);
  if (state_.epoch == 0) {  // The plan is void, and with it the hold on the memory.
    if (preparation_ != nullptr) preparation_->Cancel();
    preparation_.reset();
    plan_.reset();
  }
  if (lent != Lends(state_)) callbacks_.on_lent(!lent);
  for (auto& action : actions) std::visit([this](auto& a) { Carry(a); }, action);
}

std::unique_ptr<Sender> PeerSource::End() {
  Feed(SessionEnded{});
  return std::move(sender_);
}

void PeerSource::Carry(const BeginSending& action) {
  const StartOrder& start = action.start;
  const int target = plan_ == nullptr || sender_ == nullptr ? -1 : plan_->TargetOf(start.destination);
  if (target >= 0) {
    report_.Begun(start);
    return sender_->Start(plan_, static_cast<size_t>(target), start);
  }
  const Status status(
      Code::kProtocol,
      StrCat("told to send to destination ", start.destination,
             ", for which this rank's table has no route; use the same weightcast on all hosts"));
  session_.loop().Post([this, start, status] {
    Feed(SendEnded{
        .update = start.update, .destination = start.destination, .part = start.part, .status = status});
    Feed(SendFenced{start.update, start.destination, start.part});
  });
}

void PeerSource::Tell(std::optional<protocol::Spans> spans) {
  if (spans) callbacks_.send(std::move(*spans));
}

void PeerSource::Carry(const StopSending& action) {
  if (sender_ != nullptr) sender_->Stop(action.update, action.destination);
}

}  // namespace weightcast::worker
