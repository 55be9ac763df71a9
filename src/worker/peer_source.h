#pragma once

#include <functional>
#include <memory>

#include "protocol/messages.h"
#include "weightcast/version.h"
#include "worker/landing.h"
#include "worker/peer_source_machine.h"
#include "worker/plan_sender.h"

namespace weightcast::worker {

/// An inference rank as a source for others: carries out what the machine in peer_source_machine.h says. All
/// is called in the session's loop, and so are its callbacks, unless said otherwise. To be destroyed after
/// the loop and the background threads have ended.
class PeerSource {
 public:
  struct Callbacks {
    std::function<void(protocol::WorkerMessage)> send;
    std::function<Version()> held;      ///< VersionToLend of the rank's own machine.
    std::function<void(bool)> on_lent;  ///< Others may read the landing memory from now on, or not any more.
  };
  PeerSource(Session& session, Background& background, Callbacks callbacks);

  /// A plan that gives; from `memory`, which may be null if nothing is registered.
  void OnPlan(protocol::Plan plan, const std::shared_ptr<const LandingMemory>& memory);
  void OnLanding(protocol::PeerLanding landing) { sender_.OnLanding(std::move(landing)); }
  void OnStart(const StartOrder& start);
  /// A plan in which this rank receives: what it gave in an older one it will not be asked for again.
  void OnOtherPlan(uint32_t epoch);
  /// protocol::Welcome, protocol::Stop, protocol::Release, MemoryReclaimed.
  void Dispatch(const PeerSourceEvent& event);
  /// Nothing is given from now on. The destructor of what it returns, to be called outside of the loop,
  /// waits, bounded, until nobody reads the memory; null if nothing was ever given.
  std::unique_ptr<Sender> End();

 private:
  void OnSending(PlanSender::Event event);
  void Execute(SendMessage& action) { callbacks_.send(std::move(action.message)); }
  void Execute(const BeginSending& action) { sender_.Begin(action.start); }
  void Execute(const StopSending& action) { sender_.Stop(action); }

  Session& session_;
  const Callbacks callbacks_;
  PeerSourceState state_;
  PlanSender sender_;
};

}  // namespace weightcast::worker
