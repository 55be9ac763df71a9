#include <algorithm>

#include "base/strings.h"
#include "protocol/field_text.h"
#include "tests/model/machines.h"
#include "worker/waiting.h"

// Numbers into the machines' events, and their actions into numbers.
namespace weightcast::model {
namespace {

using protocol::ControllerMessage;
using protocol::WorkerMessage;

const Status kDead(Code::kPeerDead, "missed heartbeats for a lease");
const Status kPath(Code::kUnavailable, "the connection broke");
const Status kBroken(Code::kCorrupt, "a file changed");
const Status kEnd(Code::kUnavailable, "no controller");
const Status kNoPlan(Code::kInvalidArgument, "the sources do not hold everything");
const Status kReclaimed(Code::kCancelled, "the memory is needed here");

}  // namespace

control::Event Machines::EventOf(Ctl kind, uint16_t session, uint32_t arg) const {
  switch (kind) {
    case Ctl::kAttached:
      return control::Attached{session,
                               std::get<protocol::Hello>(std::get<WorkerMessage>(messages_[arg].value))};
    case Ctl::kBroken:
      return control::StreamBroken{session};
    case Ctl::kResumed:
      return control::Resumed{session};
    case Ctl::kGone:
      return control::Gone{session, kDead};
    case Ctl::kSaid:
      return control::MessageReceived{session, std::get<WorkerMessage>(messages_[arg].value)};
    case Ctl::kTimer:
      return control::TimerFired{TimerOf(static_cast<uint8_t>(arg))};
    case Ctl::kPlanFailed:
      return control::PlanFailed{arg, kNoPlan, {}};
    case Ctl::kPlanMade:
      break;
  }
  return control::PlanMade{arg};
}

worker::InferenceEvent Machines::RankEvent(In kind, uint32_t arg) const {
  const auto of = [&] { return updates_[arg & 0xffff]; };
  switch (kind) {
    case In::kMessage:
      return std::visit(
          [](const auto& m) -> worker::InferenceEvent {
            using T = std::decay_t<decltype(m)>;
            if constexpr (std::is_same_v<T, protocol::Lost> || std::is_same_v<T, protocol::Abort>) {
              T outcome = m;  // As the runtime does it: kTimedOut is for the waiting alone.
              outcome.reason = worker::AsOutcome(m.reason);
              return outcome;
            } else if constexpr (std::is_constructible_v<worker::InferenceEvent, T>) {
              return m;
            }
            return worker::PlanReady{~uint32_t{0}};  // Not for a rank: nothing happens.
          },
          std::get<ControllerMessage>(messages_[arg].value));
    case In::kPlan:
      return worker::PlanArrived{
          std::get<protocol::Plan>(std::get<ControllerMessage>(messages_[arg].value)).epoch};
    case In::kPlanReady:
      return worker::PlanReady{arg};
    case In::kPlanFailed:
      return worker::PlanFailed{arg, kPath};
    case In::kOpened: {
      worker::GrantsOpened opened{.update = of(), .grants = {}};
      for (uint32_t source = 0; source < 8; ++source)
        if ((arg >> (24 + source) & 1) != 0)
          opened.grants.push_back({.source = source, .slot = 0, .id = arg >> 16 & 0xff});
      return opened;
    }
    case In::kOpenFailed:
      return worker::OpenFailed{of(), kPath, int64_t{arg >> 16}};
    case In::kArrived:
      return worker::Arrived{.update = of()};
    case In::kSourceLost:
      return worker::SourceLost{of(), kPath, int64_t{arg >> 16}};
    case In::kLent:
      return worker::MemoryLent{};
    case In::kFree:
      return worker::MemoryFree{};
    case In::kFenced:
      return worker::GrantsFenced{of()};
    case In::kSetAside:
      return worker::SpareSetAside{of()};
    case In::kVerified:
      return worker::Verified{of(), Status::Ok()};
    case In::kCorrupt:
      return worker::Verified{of(), {Code::kCorrupt, "wrong checksum"}};
    case In::kCopied:
      return worker::SwitchRun{.update = of()};
    case In::kRefused:
      return worker::SwitchRun{.update = of(), .status = {Code::kCancelled, "the engine has refused"}};
    case In::kRegister:
      return worker::RegisterCalled{
          .landing = config_.landing, .same_memory = arg != 0, .parts = config_.parts};
    case In::kBegin:
      return worker::BeginCalled{};
    case In::kReceive:
      return worker::ReceiveCalled{};
    case In::kFinish:
      return worker::FinishCalled{};
    case In::kAbort:
      return worker::AbortCalled{};
    case In::kWait:
      return worker::WaitCalled{};
    case In::kExpire:
      return worker::CallExpired{.interrupted = arg != 0};
    default:
      return worker::SessionEnded{kEnd};
  }
}

worker::TrainerEvent Machines::TrainerEvent(In kind, uint32_t arg) const {
  const auto of = [&] { return updates_[arg & 0xffff]; };
  const uint32_t destination = arg >> 16 & 0xff;
  const uint32_t part = arg >> 24;
  switch (kind) {
    case In::kMessage:
      return std::visit(
          [](const auto& m) -> worker::TrainerEvent {
            using T = std::decay_t<decltype(m)>;
            if constexpr (std::is_same_v<T, protocol::Start>) return worker::OrderOf(m, m.grants.at(0));
            if constexpr (std::is_constructible_v<worker::TrainerEvent, decltype(m)>) return m;
            return worker::SendPlanReady{~uint32_t{0}};  // Not for a trainer: nothing happens.
          },
          std::get<ControllerMessage>(messages_[arg].value));
    case In::kPlan: {
      const auto& plan = std::get<protocol::Plan>(std::get<ControllerMessage>(messages_[arg].value));
      return worker::TrainerPlanArrived{plan.epoch, plan.run};
    }
    case In::kPlanReady:
      return worker::SendPlanReady{arg};
    case In::kPlanFailed:
      return worker::SendPlanFailed{arg & 0xffff, kPath, int64_t{destination}};
    case In::kRegister:
      return worker::TrainerRegisterCalled{};
    case In::kSendEnded:
      return worker::SendEnded{.update = of(), .destination = destination, .part = part, .status = {}};
    case In::kSendFailed:
      return worker::SendEnded{
          .update = of(), .destination = destination, .part = part, .status = kPath, .path = true};
    case In::kSendBroken:
      return worker::SendEnded{.update = of(), .destination = destination, .part = part, .status = kBroken};
    case In::kSendFenced:
      return worker::SendFenced{of(), destination, part};
    case In::kPublish:
      return worker::PublishCalled{.number = arg & 0xff, .hold = (arg >> 8) != 0};
    case In::kCancel:
      return worker::CancelCalled{arg};
    default:
      return worker::SessionEnded{kEnd};
  }
}

worker::PeerSourceEvent Machines::PeerSourceEvent(In kind, uint32_t arg) const {
  const auto of = [&] { return updates_[arg & 0xffff]; };
  const uint32_t destination = arg >> 16 & 0xff;
  const uint32_t part = arg >> 24;
  const auto message = [&](uint32_t id) -> const ControllerMessage& {
    return std::get<ControllerMessage>(messages_[id].value);
  };
  switch (kind) {
    case In::kMessage:
      return std::visit(
          [](const auto& m) -> worker::PeerSourceEvent {
            if constexpr (std::is_constructible_v<worker::PeerSourceEvent, decltype(m)>) return m;
            return worker::SendPlanReady{~uint32_t{0}};  // Not for a peer source: nothing happens.
          },
          message(arg));
    case In::kPlan:
      return worker::PeerSourcePlanArrived{std::get<protocol::Plan>(message(arg)).epoch};
    case In::kPlanReady:
      return worker::SendPlanReady{arg};
    case In::kPlanFailed:
      return worker::SendPlanFailed{arg & 0xffff, kPath, int64_t{destination}};
    case In::kGive: {
      const auto& [start, held] = gives_[arg];
      const auto& told = std::get<protocol::Start>(message(start));
      return worker::PeerSourceStart{worker::OrderOf(told, told.grants.at(0)), VersionOf(held)};
    }
    case In::kReclaim:
      return worker::MemoryReclaimed{.reason = kReclaimed, .leaves = arg != 0};
    case In::kSendEnded:
      return worker::SendEnded{.update = of(), .destination = destination, .part = part, .status = {}};
    case In::kSendFailed:
      return worker::SendEnded{
          .update = of(), .destination = destination, .part = part, .status = kPath, .path = true};
    case In::kSendFenced:
      return worker::SendFenced{of(), destination, part};
    default:
      return worker::SessionEnded{};
  }
}

// --- Actions --------------------------------------------------------------------------------------------

void Machines::AddEffects(const control::Actions& actions) {
  for (const control::Action& action : actions) AddEffect(action);
}

void Machines::AddEffect(const control::Action& action) {
  const auto session = [](control::SessionId id) { return static_cast<uint16_t>(id); };
  const auto* send = std::get_if<control::Send>(&action);
  const auto* start = send == nullptr ? nullptr : std::get_if<protocol::Start>(&send->message);
  if (start != nullptr) {  // One for each destination: workers take them so, one after another.
    for (const protocol::DestinationGrant& grant : start->grants) {
      protocol::Start one = *start;
      one.grants = {grant};
      effects_.push_back({.what = Do::kSend, .b = session(send->to), .c = Add(ControllerMessage(one))});
    }
  } else if (send != nullptr) {
    effects_.push_back({.what = Do::kSend, .b = session(send->to), .c = Add(send->message)});
  } else if (const auto* all = std::get_if<control::SendAll>(&action)) {
    const uint32_t message = Add(all->message);
    for (const control::SessionId to : all->to)
      effects_.push_back({.what = Do::kSend, .b = session(to), .c = message});
  } else if (const auto* refuse = std::get_if<control::Refuse>(&action)) {
    const uint32_t message = Add(ControllerMessage(protocol::Refused{refuse->reason}));
    effects_.push_back({.what = Do::kRefuse, .b = session(refuse->session), .c = message});
  } else if (const auto* forget = std::get_if<control::Forget>(&action)) {
    effects_.push_back({.what = Do::kForget, .b = session(forget->session)});
  } else if (const auto* plan = std::get_if<control::MakePlan>(&action)) {
    effects_.push_back({.what = Do::kMakePlan, .c = plan->epoch});
  } else if (const auto* hand = std::get_if<control::HandOut>(&action)) {
    effects_.push_back({.what = Do::kHandOut, .c = hand->epoch});
  } else if (const auto* set = std::get_if<control::SetTimer>(&action)) {
    effects_.push_back({.what = Do::kSetTimer, .a = NumberOf(set->timer)});
  } else if (const auto* cancel = std::get_if<control::CancelTimer>(&action)) {
    effects_.push_back({.what = Do::kCancelTimer, .a = NumberOf(cancel->timer)});
  }
}

void Machines::AddEffects(const std::vector<worker::InferenceAction>& actions) {
  const auto add = [&](const auto& action) {
    using T = std::decay_t<decltype(action)>;
    Effect effect;
    if constexpr (std::is_same_v<T, worker::SendMessage>) {
      effect = {.what = Do::kSend, .c = Add(action.message)};
    } else if constexpr (std::is_same_v<T, worker::SendRegistration>) {
      effect = {.what = Do::kRegister};
    } else if constexpr (std::is_same_v<T, worker::ReclaimMemory>) {
      effect = {.what = Do::kReclaim};
    } else if constexpr (std::is_same_v<T, worker::AnswerCall>) {
      effect = {.what = Do::kAnswer,
                .a = static_cast<uint8_t>(action.status.code()),
                .b = static_cast<uint16_t>(action.part),
                .c = CodeOf(action.version)};
    } else {
      effect.what = std::is_same_v<T, worker::OpenGrants>        ? Do::kOpen
                    : std::is_same_v<T, worker::RevokeGrants>    ? Do::kRevoke
                    : std::is_same_v<T, worker::VerifyChecksums> ? Do::kVerify
                                                                 : Do::kCopy;
      effect.b = Add(action.update);
    }
    effects_.push_back(effect);
  };
  for (const auto& action : actions) std::visit(add, action);
}

template <typename Action>
Effect Machines::EffectOfSource(const Action& action) {
  if constexpr (std::is_same_v<Action, worker::SendMessage>) {
    return {.what = Do::kSend, .c = Add(action.message)};
  } else if constexpr (std::is_same_v<Action, worker::BeginSending>) {
    const worker::StartOrder& start = action.start;
    return {
        .what = Do::kBegin,
        .a = static_cast<uint8_t>(start.destination),
        .b = Add(start.update),
        .c = static_cast<uint32_t>(start.grant) | start.part << 8 | uint32_t{CodeOf(start.version)} << 16};
  } else {
    static_assert(std::is_same_v<Action, worker::StopSending>);
    return {.what = Do::kStop, .a = static_cast<uint8_t>(action.destination), .b = Add(action.update)};
  }
}

void Machines::AddEffects(const std::vector<worker::PeerSourceAction>& actions) {
  for (const auto& action : actions)
    effects_.push_back(std::visit([&](const auto& a) { return EffectOfSource(a); }, action));
}

void Machines::AddEffects(const std::vector<worker::TrainerAction>& actions) {
  const auto add = [&](const auto& action) {
    using T = std::decay_t<decltype(action)>;
    Effect effect;
    constexpr bool of_source = std::is_same_v<T, worker::SendMessage> ||
                               std::is_same_v<T, worker::BeginSending> ||
                               std::is_same_v<T, worker::StopSending>;
    if constexpr (of_source) {
      effect = EffectOfSource(action);
    } else if constexpr (std::is_same_v<T, worker::SendRegistration>) {
      effect = {.what = Do::kRegister};
    } else if constexpr (std::is_same_v<T, worker::AnswerTrainer>) {
      effect = {
          .what = Do::kAnswer, .a = static_cast<uint8_t>(action.status.code()), .c = CodeOf(action.version)};
    } else {
      effect.what = std::is_same_v<T, worker::HoldSources>   ? Do::kHold
                    : std::is_same_v<T, worker::FreeSources> ? Do::kFree
                                                             : Do::kFinish;
      effect.c = static_cast<uint32_t>(action.number);
    }
    effects_.push_back(effect);
  };
  for (const auto& action : actions) std::visit(add, action);
}

// --- Words ----------------------------------------------------------------------------------------------

namespace {

class Words : public protocol::FieldText<Words> {
 public:
  using FieldText::Of;
  std::string Of(const Version& version) { return version.number < 0 ? "" : NameOf(CodeOf(version)); }
};

}  // namespace

std::string Machines::TextOf(uint32_t id) const { return std::visit(Words(), messages_[id].value); }

}  // namespace weightcast::model
