#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/identity.h"
#include "weightcast/status.h"
#include "worker/background.h"
#include "worker/inference_machine.h"
#include "worker/receive_plan.h"
#include "worker/receiver.h"
#include "worker/session.h"

namespace weightcast::worker {

/// Receives by the plan at hand, for the machine of an inference rank: waits for its sources to connect,
/// opens grants, revokes them and verifies what has arrived. The session's loop calls all. To be destroyed
/// after the loop and the background threads have ended.
class PlanReceiver {
 public:
  /// `feed`: gives an event to the machine, of which `state` is.
  PlanReceiver(Session& session, Background& background, const InferenceState& state,
               std::function<void(InferenceEvent)> feed)
      : session_(session), background_(background), state_(state), feed_(std::move(feed)) {}

  /// Into `memory`; without it the plan is void.
  void OnPlan(protocol::Plan plan, const std::shared_ptr<const LandingMemory>& memory);
  /// A source, or a peer of which this rank is the source.
  void OnConnected();
  void OnDisconnected(const Identity& peer, const Status& status);
  void OnDigests(protocol::SourceDigests digests);
  /// With the plan and the grants goes the hold on the memory. Returns who may still write.
  std::string Drop();

  void Open(const OpenGrants& action);
  void Revoke(const RevokeGrants& action);
  void Verify(const VerifyChecksums& action);
  /// Opened last; null after Drop.
  [[nodiscard]] const std::shared_ptr<GrantSet>& grants() const { return grants_; }

 private:
  void OnTable(uint32_t epoch, const Result<std::shared_ptr<const ReceivePlan>>& plan);

  Session& session_;
  Background& background_;
  const InferenceState& state_;
  const std::function<void(InferenceEvent)> feed_;
  std::shared_ptr<const ReceivePlan> plan_;
  std::vector<std::string> accepted_;  ///< Per source of the plan its connection; empty: not there yet.
  std::shared_ptr<GrantSet> grants_;
};

}  // namespace weightcast::worker
