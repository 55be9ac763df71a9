#pragma once

#include <array>
#include <optional>
#include <string>

#include "tests/model/config.h"
#include "tests/model/machines.h"
#include "tests/model/moves.h"
#include "tests/model/world.h"

namespace weightcast::model {

/// A promise that was broken.
struct Violation {
  std::string property;  ///< "mixture", "grant", "taken back", "two steps", "liveness"
  std::string text;
};

/// The cluster around the machines: processes, channels, memory, users. Applies one move at a time to a World
/// and checks the promises as it goes. docs/model_checker.md tells what stands for what.
class Model {
 public:
  explicit Model(const Config& config);

  World Initial();
  /// All that can happen, in the order of the fair schedule.
  void Moves(const World& world, MoveList& moves) const;
  /// What the fair schedule does next; nullopt: nothing can happen any more. `to_the_end`: the longest waits
  /// end too, those for members who do not join, for the controller and of the users themselves.
  [[nodiscard]] std::optional<Move> Next(const World& world, const MoveList& moves, bool to_the_end) const;
  void Apply(World& world, Move move);
  /// Of the last Apply.
  [[nodiscard]] const std::optional<Violation>& violation() const { return violation_; }
  void Forgive() { violation_.reset(); }

  [[nodiscard]] std::string TextOf(const World& world, Move move) const;
  /// The states of everybody, a line each.
  [[nodiscard]] std::string Show(const World& world) const;

  /// After all budgets have been taken: runs the fair schedule to its end and checks what must hold there.
  /// `trace`: the moves that it took.
  void CheckLiveness(World world, bool controller_returns, MoveList* trace);

  /// Nothing goes wrong any more from here on; as CheckLiveness does.
  void EndFaults(World& world);
  [[nodiscard]] bool AnyController(const World& world) const;

  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] Machines& machines() { return machines_; }
  [[nodiscard]] int processes() const { return config_.trainers + ranks(); }
  [[nodiscard]] int ranks() const { return config_.engines * config_.ranks; }
  [[nodiscard]] bool IsTrainer(int slot) const { return slot < config_.trainers; }
  [[nodiscard]] int EngineOf(int slot) const { return (slot - config_.trainers) / config_.ranks; }
  [[nodiscard]] protocol::WorkerName NameOf(int slot) const;
  [[nodiscard]] int SlotOf(const protocol::WorkerName& name) const;
  [[nodiscard]] const protocol::Plan& PlanOf(uint32_t message) const;

 private:
  [[nodiscard]] std::string TextOfWork(const World& world, Move move) const;
  [[nodiscard]] std::string TextOfFault(const World& world, Move move) const;

  // What can happen (moves.cc, session_moves.cc).
  void ProcessMoves(const World& world, int slot, MoveList& moves) const;
  void WriteMoves(const World& world, int write, MoveList& moves) const;
  void AdverseMoves(const World& world, MoveList& moves) const;
  void AdverseProcessMoves(const World& world, int slot, MoveList& moves) const;
  [[nodiscard]] bool MayCome(const World& world, uint32_t straggler) const;
  static bool IsLeft(const Process& p, int controller);
  void SessionMoves(const World& world, int slot, int controller, MoveList& moves) const;
  void HelloMoves(const World& world, int slot, MoveList& moves) const;
  void TimerMoves(const World& world, uint8_t controller, Kind kind, MoveList& moves) const;
  void StartMoves(const World& world, int controller, Kind kind, MoveList& moves) const;
  [[nodiscard]] bool MayCall(const World& world, int slot) const;
  [[nodiscard]] bool MayPublish(const World& world, int slot) const;
  [[nodiscard]] bool InCall(const Process& process) const;
  [[nodiscard]] bool Gone(const World& world, const protocol::Member& peer) const;
  [[nodiscard]] int FirstGone(const World& world, uint32_t plan) const;
  [[nodiscard]] bool Ended(const World& world, int slot) const;
  [[nodiscard]] int ChannelOf(const World& world, Move move) const;
  void SourceMoves(const World& world, int slot, Kind kind, bool dead, MoveList& moves) const;

  // One move (model.cc).
  void Take(World& world, Move move);
  void TakeMessage(World& world, Move move);
  void TakeStep(World& world, Move move);
  void TakeData(World& world, Move move);
  void TakeTime(World& world, Move move);
  void TakeAdverse(World& world, Move move);
  void TakeStraggler(World& world, Move move);

  // Sessions, processes and controllers (sessions.cc, controllers.cc).
  void Start(World& world, int slot);
  void Kill(World& world, int slot);
  void TakeDown(World& world, int slot, uint32_t message);
  void End(World& world, int slot);
  void TakeHello(World& world, int slot, bool low);
  void Connect(World& world, int slot, int controller);
  void GoAstray(World& world, int slot, int controller);
  void Say(World& world, int slot, uint32_t message);
  void SayRegistration(World& world, int slot);
  void KillController(World& world, int controller);
  void Forget(World& world, int controller);
  void StartController(World& world, int controller, bool low);
  void BeginTerm(World& world, int controller, uint64_t number, bool low);
  void FeedController(World& world, int controller, Ctl kind, uint16_t session, uint32_t arg);
  void Execute(World& world, int controller, const Effect& effect);
  void HandOut(World& world, int controller, uint32_t epoch);
  [[nodiscard]] int SlotOfSession(const World& world, int controller, uint16_t session) const;
  void EndSession(World& world, int controller, uint16_t session, Link link);
  [[nodiscard]] protocol::Term TermOf(const Process& p, bool trainer) const;
  static protocol::Term TermOf(const Controller& c) { return {.number = c.term, .id = c.id}; }
  [[nodiscard]] uint64_t NumberFor(const World& world, int slot) const;
  [[nodiscard]] bool IsKnown(const World& world, int controller, uint64_t number) const;
  static void Disarm(Controller& c, uint8_t timer) {
    c.timers = static_cast<uint16_t>(c.timers & ~(1U << timer));
  }
  static bool Follows(const Process& p, int controller) {
    return p.at == controller && (p.link == Link::kLinked || p.link == Link::kBroken);
  }
  static bool Hears(const Process& p, int controller, uint16_t session) {
    return p.life != Life::kDead && Follows(p, controller) && p.seats[controller].session == session;
  }
  void Keep(World& world, uint32_t straggler);
  [[nodiscard]] uint32_t EpochOf(uint32_t plan) const;
  void Planned(World& world, int controller);

  // Workers (workers.cc).
  void Dispatch(World& world, int slot, In kind, uint32_t arg = 0);
  void FeedRank(World& world, int slot, In kind, uint32_t arg);
  void FeedTrainer(World& world, int slot, In kind, uint32_t arg);
  void FeedPeerSource(World& world, int slot, In kind, uint32_t arg);
  void FeedSource(World& world, int slot, In kind, uint32_t arg);
  struct Opened {
    In kind = In::kEnded;  ///< kOpened or kOpenFailed, to be fed when all actions are carried out.
    uint32_t arg = 0;
  };
  void CarryRank(World& world, int slot, const Effect& effect, worker::UserCall call, Opened& opened);
  void OpenGrants(World& world, int slot, uint16_t update, Opened& opened);
  void CarryTrainer(World& world, int slot, const Effect& effect);
  void CarrySource(World& world, int slot, const Effect& effect);
  void TakeGivingPlan(World& world, int slot, uint32_t message);
  void AskToRegister(World& world, int slot, bool same_memory);
  void Register(World& world, int slot);
  void FreeMemory(World& world, int slot);
  void OnAnswer(World& world, int slot, Code code, worker::UserCall call, uint16_t part);
  void Call(World& world, int slot);
  void CallFor(World& world, int slot, In kind, worker::UserCall call);
  void Publish(World& world, int slot);

  // Data (data_plane.cc).
  void BeginWrite(World& world, int source, const Effect& effect);
  void StopWrite(World& world, int source, const Effect& effect);
  [[nodiscard]] uint8_t BoxesOf(int sources, int number, int destination) const;
  [[nodiscard]] std::array<Content, kBoxes>& LandingOf(Process& process) const {
    return config_.landing == protocol::Landing::kInPlace ? process.live : process.spare;
  }
  void Land(World& world, int write, bool half);
  void Signal(World& world, int write);
  void Fence(World& world, int slot);
  void SetAside(World& world, int slot);
  void CloseGrants(World& world, int slot);
  void LeaveWrite(World& world, int write);
  uint32_t LetGo(World& world, int write);
  [[nodiscard]] uint8_t BoxesOfPart(uint32_t part) const;
  static uint32_t SendingOf(const Write& w);
  void SendEnd(World& world, int write);
  void SendFail(World& world, int write, In how = In::kSendFailed);
  void SendFence(World& world, int write);
  [[nodiscard]] std::array<Content, kBoxes> BytesOf(const World& world, int write) const;

  // Copies by the target's own engine (pulls.cc).
  static bool SourceStayed(const Write& w);
  [[nodiscard]] bool OwnCopiesOver(const World& world, int slot) const;
  void PullMoves(const World& world, int write, MoveList& moves) const;
  void EndPull(World& world, int write);

  // What a controller has heard and told (ledger.cc).
  void Handle(World& world, int controller, int slot, uint32_t message);
  void HearFailed(World& world, int controller, int slot, const protocol::Failed& failed);
  void HearAborted(Ledger& ledger, int slot, const protocol::Aborted& aborted);
  void Send(World& world, int controller, int slot, uint32_t message);
  void TellTrainer(World& world, int controller, int slot, const protocol::ControllerMessage& value);
  void TellRequest(World& world, int controller, int slot, const protocol::GrantRequest& request);
  void TellNextPart(World& world, int controller, int slot, const protocol::GrantRequest& request);
  void TellStart(World& world, int controller, int source, const protocol::Start& start);
  void TellAbort(World& world, int controller, int slot, const protocol::Abort& abort);
  [[nodiscard]] bool SameUpdate(uint16_t one, const protocol::UpdateId& other) const;
  [[nodiscard]] bool IsFresh(const World& world, int controller, const Version& version) const;
  [[nodiscard]] bool IsIn(const World& world, int controller, int slot,
                          const protocol::UpdateId& update) const;
  [[nodiscard]] int DestinationOf(const World& world, int controller, int source,
                                  const protocol::Start& start) const;
  void CheckAllAt(const World& world, int controller, int slot, const protocol::UpdateId& update, Heard least,
                  const char* what);
  void CheckReleased(const World& world, int controller, const protocol::UpdateId& update);
  void CheckOutcome(const World& world, int controller, const protocol::Done& done, bool fresh);

  // Promises (checks.cc).
  void Fail(const char* property, std::string text);
  [[nodiscard]] bool Holds(Content box, Content version) const;
  void CheckServed(const World& world, int slot);
  void CheckLanding(const World& world, int write);
  void CheckOpening(const World& world, int slot);
  void CheckSaid(const World& world, int slot, uint32_t message);
  void CheckAbort(const World& world, int controller, int slot, uint16_t update);
  void CheckAsked(World& world, int slot, uint32_t message);
  void CheckLanded(const World& world, int slot);
  void CheckGiven(const World& world, int slot, Content version, uint8_t boxes);
  void CheckUnread(const World& world, int slot, const char* what);
  void CheckFreed(const World& world, int slot, uint32_t number);
  void RunToTheEnd(World& world, std::array<int, kMaxProcesses>& expired, MoveList* trace);
  [[nodiscard]] bool AnyEngine(const World& world) const;
  [[nodiscard]] bool AnyGives(const World& world) const;
  void CheckIdle(const World& world, int slot);
  void CheckEnd(const World& world);

  const Config config_;
  Machines machines_;
  std::optional<Violation> violation_;
  uint32_t tired_ = 0;               ///< Users who make no more calls; only while liveness is checked.
  bool without_controller_ = false;  ///< None is started again; likewise.
  worker::UserCall immediate_ = worker::UserCall::kNone;  ///< The call that is being made.
};

}  // namespace weightcast::model
