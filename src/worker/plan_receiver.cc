#include "worker/plan_receiver.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"

namespace weightcast::worker {

void PlanReceiver::OnPlan(protocol::Plan plan, const std::shared_ptr<const LandingMemory>& memory) {
  plan_.reset();
  feed_(PlanArrived{plan.epoch});
  if (memory == nullptr) return;
  background_.Run([this, plan = std::make_shared<protocol::Plan>(std::move(plan)), memory] {
    auto made = MakeReceivePlan(*plan, session_.settings().tables, memory);
    session_.loop().Post([this, epoch = plan->epoch, made] { OnTable(epoch, made); });
  });
}

void PlanReceiver::OnTable(uint32_t epoch, const Result<std::shared_ptr<const ReceivePlan>>& plan) {
  if (epoch != state_.epoch) return;
  if (!plan.ok()) {
    WC_LOG(kWarning, session_.text(), ": plan of epoch ", epoch, ": ", plan.status().message());
    return feed_(PlanFailed{epoch, plan.status()});
  }
  plan_ = *plan;
  accepted_.assign(plan_->sources.size(), {});
  OnConnected();
}

/// The sources connect; when the last is there this rank is prepared.
void PlanReceiver::OnConnected() {
  if (plan_ == nullptr || state_.prepared) return;
  const auto missing = [this] { return std::count(accepted_.begin(), accepted_.end(), std::string()); };
  for (size_t i = 0; i < accepted_.size(); ++i) {
    if (!accepted_[i].empty()) continue;
    const auto connection = session_.endpoint().Find(plan_->sources[i].incarnation);
    if (!connection) continue;
    accepted_[i] = StrCat(plan_->sources[i].name, ": ", connection->Describe());
    WC_LOG(kInfo, session_.text(), ": accepted ", std::ssize(accepted_) - missing(), "/", accepted_.size(),
           " from ", accepted_[i]);
  }
  if (missing() == 0) feed_(PlanReady{.epoch = state_.epoch, .connections = accepted_});
}

void PlanReceiver::OnDisconnected(const Identity& peer, const Status& status) {
  WC_LOG(kInfo, session_.text(), ": connection with ", ToString(peer), " ended: ", status.message());
  const auto* source = grants_ == nullptr ? nullptr : grants_->Missing(peer.incarnation);
  if (source == nullptr || state_.step != Step::kWriting) return;
  const Status reason = Error(status.code(), "the connection from ", source->name,
                              " ended before all its bytes had come: ", status.message());
  feed_(SourceLost{state_.update, reason, int64_t{source->source}});
}

void PlanReceiver::OnDigests(protocol::SourceDigests digests) {
  if (grants_ != nullptr && digests.update == state_.update && digests.part == state_.part)
    grants_->OnDigests(std::move(digests));
}

std::string PlanReceiver::Drop() {
  const std::string writers = grants_ == nullptr ? std::string() : grants_->Writers();
  plan_.reset();
  grants_.reset();
  return writers.empty() ? "a trainer or a rank of another engine" : writers;
}

void PlanReceiver::Open(const OpenGrants& action) {
  const auto complete = [this, update = action.update] {
    session_.loop().Post([this, update] {
      if (grants_ == nullptr) return;
      feed_(Arrived{update, grants_->bytes(), grants_->seconds(), grants_->sources()});
    });
  };
  if (plan_ == nullptr)
    return feed_(OpenFailed{action.update, Error(Code::kInternal, "no routing table is there for ",
                                                 protocol::ToString(action.update), kReportBug)});
  uint32_t refused = 0;
  ArrivalChecks checks{.checksums = session_.settings().checksum != 0};
  if (state_.compares) checks.compare_on = [this](const auto& task) { background_.Run(task); };
  auto opened =
      GrantSet::Open(session_.endpoint(), plan_, action.part, std::move(checks), complete, &refused);
  if (!opened.ok()) return feed_(OpenFailed{action.update, opened.status(), int64_t{refused}});
  grants_ = *opened;
  feed_(GrantsOpened{action.update, grants_->grants()});
}

void PlanReceiver::Revoke(const RevokeGrants& action) {
  grants_->Revoke([this, update = action.update] {
    session_.loop().Post([this, update] { feed_(GrantsFenced{update}); });
  });
}

void PlanReceiver::Verify(const VerifyChecksums& action) {
  background_.Run([this, grants = grants_, update = action.update] {
    const Status status = grants->Verify();
    session_.loop().Post(
        [this, update, status, compared = grants->compared()] { feed_(Verified{update, status, compared}); });
  });
}

}  // namespace weightcast::worker
