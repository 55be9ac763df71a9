#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "control/machine_events.h"
#include "control/machine_state.h"

namespace weightcast::control {

/// One step of the controller's machine: the rules, by theme in machine_*.cc. Lives for one event.
class Machine {
 public:
  Machine(const MachineConfig& config, MachineState& state, Actions& actions)
      : config_(config), s_(state), actions_(actions) {}

  void On(const Attached& event);
  void On(const StreamBroken& event);
  void On(const Resumed& event);
  void On(const Gone& event);
  void On(const Said& event);
  void On(const TimerFired& event);
  void On(const PlanMade& event);
  void On(const PlanFailed& event);

  // What a view needs too.
  /// The newest that any of its ranks has served.
  [[nodiscard]] Version NewestOf(const Group& group) const;
  /// The version is older than one that a rank of the engine has served, or cannot be told to be newer: its
  /// run has that one's number, but another controller counted it.
  [[nodiscard]] bool TakesBack(const Group& group, const Version& version) const;
  [[nodiscard]] static bool TakesBack(const Worker& rank, const Version& version);
  [[nodiscard]] protocol::EngineState EngineStateOf(const Group& group) const;
  [[nodiscard]] protocol::WorkerName NameOf(const Worker& worker) const;
  [[nodiscard]] std::string_view Phase() const;

 private:
  // Groups and sessions (machine_join.cc).
  [[nodiscard]] Status CheckHello(const protocol::Hello& hello) const;
  [[nodiscard]] Status CheckRun(uint64_t run, uint64_t origin) const;
  [[nodiscard]] Status CheckVersion(const Version& version) const;
  /// Refuses, or removes the old holder of the place.
  [[nodiscard]] Status TakePlace(const protocol::Hello& hello);
  Group& GroupFor(const protocol::Hello& hello);
  void Admit(SessionId session, const protocol::Hello& hello, const Group& group);
  void OnRegister(const Worker& worker, const protocol::Register& message);
  void OnSuspended(const Worker& rank);
  void NewRunIfReplaced(const protocol::Hello& hello);
  void JoinRun(uint32_t rank, uint64_t incarnation);
  void NewRunIfServed(const Worker& rank);
  /// Versions of the run would not be newer than all that has been served.
  [[nodiscard]] bool IsOver(const protocol::Run& run) const;
  [[nodiscard]] static bool IsOver(const protocol::Run& run, const Worker& rank);
  void RaiseRun(const protocol::Run& run, const Status& reason);
  void BeginRun(uint64_t after, const Status& reason) { RaiseRun({after + 1, config_.term.id}, reason); }
  /// The worker is gone: tells the others (but those who leave with it), and every part that it played ends.
  void Lose(SessionId session, const Status& reason, const std::vector<SessionId>& with_it = {});
  void RefuseWorker(SessionId session, const Status& reason);
  void RefuseWorkers(const std::vector<SessionId>& sessions, const Status& reason);
  void RefuseGroup(GroupId id, const Status& reason);
  void ForgetEmptyGroups();
  void ArmJoinTimers();
  void OnJoinTimer(GroupId id);
  [[nodiscard]] Status WhyStillWaiting(const Group& group) const;
  [[nodiscard]] std::string MissingMembers(const Group& group) const;

  // Plans (machine_plan.cc).
  [[nodiscard]] bool PlanPossible() const;
  void Replan();
  [[nodiscard]] std::vector<SessionId> Newcomers() const;
  void StartPlan();
  void VoidPlan(Duration delay);
  void OnPrepared(const Worker& worker, const protocol::Prepared& message);
  void OnPrepareFailed(const Worker& worker, const protocol::Failed& message);
  void OnPrepareTimer();
  /// `may_pass`: it could not be reached, which may change.
  void BlamePreparation(GroupId group, SessionId culprit, const Status& reason, bool may_pass);
  void OnRetryTimer(GroupId group);
  void ForgetFailedPrepares(Group& group);

  // Publications (machine_publish.cc).
  void RefusePublished(const Worker& trainer, const protocol::Published& message);
  void OnPublished(const Worker& trainer, const protocol::Published& message);
  void OnCancel(const Worker& trainer, const protocol::Cancel& message);
  void OnCatchUpTimer();
  void OnFenceTimer();
  void FailHopeless();
  void FailPassed();
  /// The trainer offers nothing from now on; its publication ends with this reason if it still waits.
  void WithdrawOffer(const Worker& trainer, const Status& reason);
  void ArmCatchUp();
  void Supersede(int64_t number);
  /// Answers every publication that waits with this reason. `for_good`: its bytes are not to be had any more.
  void FailWaiting(const Status& reason, bool for_good);
  void AnswerFailed(const Worker& trainer, int64_t number, const Status& reason);
  [[nodiscard]] int64_t CommonOffer() const;
  /// Whether a publication has no answer and no update yet.
  [[nodiscard]] bool AnyWaiting() const { return s_.roster.waiting() != 0; }
  /// Trainers that offer this number, by session.
  [[nodiscard]] std::vector<SessionId> OfferersOf(int64_t number) const;
  [[nodiscard]] std::string Disagreement() const;
  void TryOpen();
  /// What part an engine takes in an update to `version`.
  enum class Part { kTarget, kAbsent, kIgnored, kFencing };
  Part PartOf(const Group& group, const Version& version, bool fresh, UpdateState& update) const;
  void Open(UpdateState update, bool fresh);
  /// Who the sources of the plan are, for Done: they may have left by then.
  void AddSenders();
  /// Pauses the engine first if it has an EngineControl and its live tensors are to be written.
  void BeginGrants(Target& target);
  void AskForGrants(Target& target);
  void AwaitGrants(Target& target);

  // The update (machine_update.cc, machine_abort.cc).
  void OnGranted(const Worker& worker, const protocol::Granted& message);
  void OnReady(const Worker& worker, const protocol::Ready& message);
  void OnSentDigests(const Worker& source, const protocol::SentDigests& message);
  void OnCommitted(const Worker& worker, const protocol::Committed& message);
  void OnServing(const Worker& worker, const protocol::Serving& message);
  void OnAborted(const Worker& worker, const protocol::Aborted& message);
  void OnFailed(const Worker& worker, const protocol::Failed& message);
  void SourceFailed(const Worker& worker, const protocol::Failed& message, const Status& reason);
  void SourceBroken(const Worker& worker, const protocol::UpdateId& failed, const Status& reason);
  void RankFailed(const Worker& worker, const protocol::Failed& message, const Status& reason);
  void OnStepTimer(GroupId group);
  /// The present step of the named worker if the message is about the open update and comes in turn;
  /// otherwise nullptr. What comes out of turn costs its engine the update.
  Receiver* InTurn(const Worker& worker, const protocol::UpdateId& update, RankStep step,
                   std::string_view what, std::optional<uint32_t> part = std::nullopt);
  void Enter(Target& target, EngineStep step);
  void StartGranted();
  void TellStart(const std::vector<Target*>& targets);
  /// A version that some engine serves already commits in each engine by itself.
  [[nodiscard]] bool SwitchTogether() const { return config_.together && s_.update->fresh; }
  /// An update that still waits for its first grants ends when all trainers have something newer.
  void SupersedeUnstarted();
  void WithdrawUnstarted();
  /// Engines that have not come to an update keep nobody else waiting once the others are through.
  void LeaveLate();
  [[nodiscard]] bool IsLate(const Target& target) const;
  [[nodiscard]] bool SomethingNewer() const;
  void BeginAgain(const Worker& rank, std::string_view what);
  void DisarmStep(GroupId id);
  /// Whether some rank of the engine switches in its user's call, which may begin late.
  [[nodiscard]] bool HasShadow(GroupId id) const;
  /// Every step of an engine goes through here.
  void SetStep(Target& target, EngineStep step);
  /// The update is over, or withdrawn.
  UpdateState TakeUpdate();
  [[nodiscard]] Duration LimitOf(const Target& target) const;
  [[nodiscard]] bool IsLastPart(const Target& target) const;
  void EndPart(Target& target);
  [[nodiscard]] bool HasTakenParts(const Target& target) const;
  void ReleaseSources();
  void CommitReady();
  void TellCommit(Target& target);
  void TellServe(Target& target);
  /// `who` is the rank that is to blame, nullptr when that is no rank of this engine.
  void EngineOut(Target& target, const Status& reason, const Worker* who = nullptr,
                 SessionId fenced_already = 0);
  void AbortRanks(const Target& target, const Status& reason, SessionId fenced_already = 0);
  void StopSenders(const Target& target);
  /// No source is left, or one is not to be trusted: every engine that has come no further than `last` is
  /// out.
  void AbortAll(const Status& reason, EngineStep last = EngineStep::kReady);
  /// What the last step has made possible.
  void AdvanceUpdate();
  void Finish();
  [[nodiscard]] protocol::Done MakeDone(const UpdateState& update) const;
  void ListRows(const UpdateState& update, protocol::Done& done) const;
  void UpdateLoses(const Worker& worker, const Status& reason);
  Target* TargetOf(GroupId group) { return s_.update ? s_.update->TargetOf(group) : nullptr; }
  Receiver* ReceiverOf(SessionId session) { return s_.update ? s_.update->ReceiverOf(session) : nullptr; }

  // Other holders of the bytes (machine_repair.cc).
  /// `lost` sends no more for this update: engines that lack bytes get them from others, or are out. With
  /// `only`, just the path to that engine has failed.
  void LoseSource(const Worker& lost, const Status& reason, Target* only = nullptr);
  void MakeSourceless(Target& target);
  void LosePeerSource(const Target& out, const Status& reason);
  void TryRepair();
  void MakeRepairPlan(std::vector<SessionId> sources, bool from_engines);
  void OpenAttempt();
  /// What was planned for a repair does not work: the next holders are tried.
  void RepairFailed(const Status& reason);
  [[nodiscard]] bool Repairing() const { return s_.update && s_.update->repair_epoch != 0; }
  [[nodiscard]] std::vector<SessionId> SessionsOf(Holders holders) const;
  [[nodiscard]] bool Holds(const Group& group, const Version& version) const;
  [[nodiscard]] Version NewestServed() const;
  /// Engines that lack what others serve get it from them; true if such an update is open now.
  bool OpenFromPeers();
  [[nodiscard]] std::vector<const Group*> Lacking(const Version& version) const;

  // EngineControl (machine_steer.cc).
  void AttachControl(SessionId session, const protocol::Hello& hello);
  void LoseControl(Group& group, const Status& reason);
  void ControlSaid(Group& group, const protocol::WorkerMessage& message);
  void OnSteered(Group& group, const protocol::Steered& message);
  void Order(Group& group, protocol::Move move, const Version& version, const Status& reason = Status::Ok());
  void OrderFor(Target& target, EngineStep step, protocol::Move move, const Version& version);
  void GoOn(Target& target);
  void SteerFailed(Target& target, const Status& reason);
  void OnSteerTimer(Target& target);
  void SteerIdle();
  /// The engine whose EngineControl this is; nullptr if it is none.
  Group* SteeredBy(SessionId session);

  // Look-ups.
  [[nodiscard]] const Worker* Find(SessionId session) const { return s_.roster.Find(session); }
  [[nodiscard]] const Group* FindGroup(GroupId id) const { return s_.roster.FindGroup(id); }
  /// Until the end of the statement.
  [[nodiscard]] Roster::Edit Change(const Worker& worker) { return s_.roster.Change(worker); }
  Group& Change(const Group& group) { return s_.roster.Change(group); }
  Group& ChangeGroup(GroupId id) { return s_.roster.Change(*FindGroup(id)); }
  [[nodiscard]] bool AnyMember(const Group& group, const std::function<bool(const Worker&)>& is) const;
  [[nodiscard]] static bool Complete(const Group& group) {
    return group.world_size != 0 && group.members == group.world_size;
  }
  /// A rank sleeps: the others wait for it as long as it likes.
  [[nodiscard]] static bool IsSuspended(const Group& group) { return group.counts.suspended != 0; }
  /// Complete, registered and landed.
  [[nodiscard]] bool Whole(const Group& group) const;
  /// Whole, and not left out because it could not be reached.
  [[nodiscard]] bool Plannable(const Group& group) const;
  /// Whether some rank has not answered an abort yet.
  [[nodiscard]] static bool IsFencing(const Group& group) { return group.counts.fencing != 0; }
  [[nodiscard]] bool InPlan(const Worker& worker) const {
    return worker.planned != 0 && worker.planned == s_.plan.epoch;
  }
  [[nodiscard]] std::string NameOf(const Group& group) const;
  [[nodiscard]] protocol::WorkerName NameOf(const Receiver& receiver) const;
  [[nodiscard]] std::string TextOf(const Worker& worker) const { return protocol::ToString(NameOf(worker)); }

  // Actions.
  void Tell(SessionId to, protocol::ControllerMessage message) {
    actions_.push_back(Send{to, std::move(message)});
  }
  /// Those of them that are here.
  void TellAll(const std::vector<SessionId>& sessions, const protocol::ControllerMessage& message);
  /// Those that keep its bytes.
  void TellTrainers(const UpdateState& update, const protocol::ControllerMessage& message);
  void TellSources(const protocol::ControllerMessage& message);
  void Arm(TimerKind kind, GroupId group, Duration after) {
    actions_.push_back(SetTimer{{kind, group}, after});
  }
  void Disarm(TimerKind kind, GroupId group = 0) { actions_.push_back(CancelTimer{{kind, group}}); }
  template <typename... Parts>
  void Log(LogLevel level, const Parts&... parts) {
    LogAndCount({}, level, parts...);
  }
  /// A string that lives for ever, as in docs/operations.md.
  template <typename... Parts>
  void LogAndCount(std::string_view counter, LogLevel level, const Parts&... parts) {
    actions_.push_back(Note{level, StrCat(parts...), counter});
  }

  /// After every event: whatever has become possible or hopeless.
  void Advance();

  const MachineConfig& config_;
  MachineState& s_;
  Actions& actions_;
};

}  // namespace weightcast::control
