#include "worker/plan_sender.h"

#include <utility>

#include "base/strings.h"

namespace weightcast::worker {

Status PlanSender::Start() {
  if (sender_ != nullptr) return Status::Ok();
  Sender::Callbacks callbacks;
  callbacks.on_ended = [this](const SendEnded& ended) {
    session_.loop().Post([this, ended] { callbacks_.feed(ended); });
  };
  callbacks.on_fenced = [this](const SendFenced& fenced) {
    session_.loop().Post([this, fenced] {
      if (auto spans = report_.Fenced(fenced)) callbacks_.send(std::move(*spans));
      callbacks_.feed(fenced);
    });
  };
  callbacks.on_digests = [this](protocol::SentDigests digests) { callbacks_.send(std::move(digests)); };
  WC_ASSIGN_OR_RETURN(sender_,
                      Sender::Create(session_.endpoint(), session_.settings(), std::move(callbacks)));
  return Status::Ok();
}

// --- Plans --------------------------------------------------------------------------------------------

void PlanSender::OnPlan(protocol::Plan plan, Preparation::MakeMemory memory) {
  DropPlan();
  if (ended_) return;
  preparation_ = std::make_shared<Preparation>(std::move(plan), std::move(memory));
  if (preparation_->complete()) Prepare();
}

void PlanSender::OnLanding(protocol::PeerLanding landing) {
  if (preparation_ != nullptr && preparation_->Add(std::move(landing))) Prepare();
}

void PlanSender::DropPlan() {
  if (preparation_ != nullptr) preparation_->Cancel();
  preparation_.reset();
  plan_.reset();
}

void PlanSender::Prepare() {
  background_.Run([this, preparation = preparation_] {
    auto plan = preparation->Run(session_);
    session_.loop().Post([this, preparation, plan] { OnPrepared(preparation, plan); });
  });
}

void PlanSender::OnPrepared(const std::shared_ptr<Preparation>& preparation,
                            const Result<std::shared_ptr<const SendPlan>>& plan) {
  if (preparation != preparation_) return;
  Status status = Start();
  if (status.ok()) status = plan.ok() ? sender_->CheckStaging(**plan) : plan.status();
  if (!status.ok())
    return callbacks_.feed(SendPlanFailed{preparation->epoch(), status, preparation->unreachable()});
  plan_ = *plan;
  callbacks_.feed(SendPlanReady{preparation->epoch()});
}

// --- Sending ------------------------------------------------------------------------------------------

void PlanSender::Begin(const StartOrder& start, std::shared_ptr<const StreamGate> gate) {
  const bool usable = plan_ != nullptr && plan_->table.epoch == start.update.epoch && sender_ != nullptr;
  const int target = usable ? plan_->TargetOf(start.destination) : -1;
  if (target >= 0) {
    report_.Begun(start);
    return sender_->Start(plan_, static_cast<size_t>(target), start, std::move(gate));
  }
  const bool trainer = session_.name().role == protocol::Role::kTrainer;
  const Status status =
      Error(Code::kProtocol, "the controller ordered a transfer to inference rank ", start.destination,
            " of plan ", start.update.epoch, ", for which this ", trainer ? "trainer" : "rank",
            "'s table has no route; use the same weightcast on all hosts");
  session_.loop().Post([this, start, status] {
    callbacks_.feed(SendEnded{
        .update = start.update, .destination = start.destination, .part = start.part, .status = status});
    callbacks_.feed(SendFenced{start.update, start.destination, start.part});
  });
}

void PlanSender::Stop(const StopSending& action) {
  if (sender_ != nullptr) sender_->Stop(action.update, action.destination);
}

void PlanSender::Look() {
  if (sender_ != nullptr) sender_->Look();
}

std::unique_ptr<Sender> PlanSender::End() {
  ended_ = true;
  DropPlan();
  return std::move(sender_);
}

}  // namespace weightcast::worker
