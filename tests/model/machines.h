#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "control/controller_machine.h"
#include "tests/model/config.h"
#include "tests/model/intern.h"
#include "tests/model/world.h"
#include "worker/inference_machine.h"
#include "worker/peer_source_machine.h"
#include "worker/trainer_machine.h"

/// The product's machines behind numbers: a state, a message, a queue or an update id is kept once and named
/// by its number, and a step that has been taken before is looked up. The machines are pure functions (their
/// unit tests hold them to that), so a step that is looked up is the step that they would take.
namespace weightcast::model {

/// What a machine wants done, and with which numbers.
enum class Do : uint8_t {
  kSend,  ///< c: message; of the controller b: session.
  kRegister,
  kOpen,  ///< b: update.
  kReclaim,
  kRevoke,       ///< b: update.
  kVerify,       ///< b: update.
  kCopy,         ///< b: update.
  kAnswer,       ///< a: code; c: content of the version; b: part.
  kBegin,        ///< c: the grant, above it the part and the version's content; b: update; a: destination.
  kStop,         ///< b: update; a: destination.
  kHold,         ///< c: number.
  kFree,         ///< c: number.
  kFinish,       ///< c: number.
  kRefuse,       ///< b: session; c: the Refused.
  kForget,       ///< b: session.
  kMakePlan,     ///< c: epoch.
  kHandOut,      ///< c: epoch.
  kSetTimer,     ///< a: timer.
  kCancelTimer,  ///< a: timer.
};
struct Effect {
  Do what{};
  uint8_t a = 0;
  uint16_t b = 0;
  uint32_t c = 0;
};
/// The state after a step, and where its effects stand.
struct Taken {
  uint32_t next = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};

/// Events of workers' machines; in brackets what `arg` is.
enum class In : uint8_t {
  kMessage,     ///< [message]
  kPlan,        ///< [message]
  kPlanReady,   ///< [epoch]
  kPlanFailed,  ///< [epoch]
  kOpened,      ///< [update | serial << 16 | set of sources << 24]
  kOpenFailed,  ///< [update | source << 16]
  kArrived,     ///< [update]
  kSourceLost,  ///< [update | source << 16]
  kFenced,      ///< [update]
  kSetAside,    ///< [update]
  kVerified,    ///< [update]
  kCorrupt,     ///< [update]
  kCopied,      ///< [update]
  kRefused,     ///< [update]
  kEnded,
  kRegister,  ///< [same memory]
  kBegin,
  kReceive,
  kFinish,
  kAbort,
  kWait,
  kExpire,  ///< [interrupted]
  kLent,
  kFree,
  kGive,        ///< [a Start and what is held]
  kReclaim,     ///< [leaves]
  kSendEnded,   ///< [update | destination << 16 | part << 24]
  kSendFailed,  ///< [update | destination << 16 | part << 24]
  kSendBroken,  ///< The same, by the sender's own fault.
  kSendFenced,  ///< [update | destination << 16 | part << 24]
  kPublish,     ///< [number | hold << 8]
  kCancel,      ///< [number]
};
/// Events of the controller's machine.
enum class Ctl : uint8_t { kAttached, kBroken, kResumed, kGone, kSaid, kTimer, kPlanMade, kPlanFailed };

struct Message {
  std::variant<protocol::WorkerMessage, protocol::ControllerMessage> value;
  uint16_t update = 0;     ///< 0: it names none.
  bool straggles = false;  ///< It may be heard again.
  bool registers = false;
};

/// The timers' numbers in World::timers, and back.
uint8_t NumberOf(const control::TimerId& timer);
control::TimerId TimerOf(uint8_t number);
inline constexpr int kTimers = 16;
inline constexpr uint8_t kFirstJoinTimer = 8;

Content CodeOf(const Version& version);
Version VersionOf(Content content);
std::string NameOf(Content content);

class Machines {
 public:
  explicit Machines(const Config& config);

  [[nodiscard]] const control::MachineState& controller(uint32_t id) const { return controllers_[id]; }
  [[nodiscard]] const worker::InferenceState& rank(uint32_t id) const { return ranks_[id]; }
  [[nodiscard]] const worker::TrainerState& trainer(uint32_t id) const { return trainers_[id]; }
  [[nodiscard]] const worker::PeerSourceState& peer_source(uint32_t id) const { return peer_sources_[id]; }
  [[nodiscard]] const Effect& effect(uint32_t index) const { return effects_[index]; }
  [[nodiscard]] uint32_t NewController() const { return 0; }
  uint32_t NewRank(const protocol::WorkerName& name);
  [[nodiscard]] uint32_t NewTrainer() const { return 0; }
  [[nodiscard]] uint32_t NewPeerSource() const { return 0; }

  Taken StepController(uint32_t state, const protocol::Term& term, Ctl kind, uint16_t session, uint32_t arg);
  Taken StepRank(uint32_t state, In kind, uint32_t arg);
  Taken StepTrainer(uint32_t state, In kind, uint32_t arg);
  Taken StepPeerSource(uint32_t state, In kind, uint32_t arg);

  // Messages. 0 is none.
  uint32_t Add(protocol::WorkerMessage message);
  uint32_t Add(protocol::ControllerMessage message);
  [[nodiscard]] const Message& message(uint32_t id) const { return messages_[id]; }
  [[nodiscard]] std::string TextOf(uint32_t message) const;
  uint16_t Add(const protocol::UpdateId& update);
  [[nodiscard]] const protocol::UpdateId& update(uint16_t id) const { return updates_[id]; }

  // Queues of messages. 0 is the empty one.
  uint32_t Push(uint32_t queue, uint32_t message);
  uint32_t Pop(uint32_t queue);
  [[nodiscard]] uint32_t Front(uint32_t queue) const { return queues_[queue].front(); }
  [[nodiscard]] const std::vector<uint32_t>& queue(uint32_t id) const { return queues_[id]; }

  /// A Start and what the rank that gets it holds, for In::kGive.
  uint32_t Add(uint32_t start, Content held) {
    return gives_.Add({start, held}, Mix(uint64_t{start} << 16 | held));
  }

  /// How many different ones have been seen, for the summary.
  [[nodiscard]] std::string Sizes() const;

 private:
  template <typename Run>
  Taken Remember(uint64_t key, Run run);
  void AddEffects(const control::Actions& actions);
  void AddEffects(const std::vector<worker::InferenceAction>& actions);
  void AddEffects(const std::vector<worker::TrainerAction>& actions);
  void AddEffects(const std::vector<worker::PeerSourceAction>& actions);
  void AddEffect(const control::Action& action);
  template <typename Action>
  Effect EffectOfSource(const Action& action);
  [[nodiscard]] control::Event EventOf(Ctl kind, uint16_t session, uint32_t arg) const;
  template <typename State, typename Event>
  Taken StepWorker(const State& state, uint64_t id, uint64_t salt, In kind, uint32_t arg,
                   Event (Machines::*event)(In, uint32_t) const);
  [[nodiscard]] worker::InferenceEvent RankEvent(In kind, uint32_t arg) const;
  [[nodiscard]] worker::TrainerEvent TrainerEvent(In kind, uint32_t arg) const;
  [[nodiscard]] worker::PeerSourceEvent PeerSourceEvent(In kind, uint32_t arg) const;
  uint32_t AddMessage(Message message, uint64_t fingerprint);
  uint32_t Keep(control::MachineState state);
  uint32_t Keep(worker::InferenceState state);
  uint32_t Keep(worker::TrainerState state);
  uint32_t Keep(worker::PeerSourceState state);

  const Config& config_;
  Pool<control::MachineState> controllers_;
  Pool<worker::InferenceState> ranks_;
  Pool<worker::TrainerState> trainers_;
  Pool<worker::PeerSourceState> peer_sources_;
  Pool<Message> messages_;
  Pool<protocol::UpdateId> updates_;
  Pool<std::pair<uint32_t, Content>> gives_;
  Pool<std::vector<uint32_t>> queues_;
  FingerprintTable pushed_;
  std::vector<uint32_t> popped_;
  FingerprintTable known_;
  std::vector<Taken> taken_;
  std::vector<Effect> effects_;
};

}  // namespace weightcast::model
