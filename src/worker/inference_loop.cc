#include "worker/inference_loop.h"

#include <utility>
#include <variant>

#include "base/strings.h"
#include "worker/shards.h"

namespace weightcast::worker {

InferenceLoop::InferenceLoop(Session& session, Background& background, std::string model)
    : session_(session),
      model_(std::move(model)),
      receiver_(session, background, state_, [this](InferenceEvent event) { Dispatch(std::move(event)); }),
      writers_(session, background, state_, registered_.memory,
               {.feed = [this](InferenceEvent event) { Dispatch(std::move(event)); },
                .replace = [this](auto spare) { return ReplaceSpare(std::move(spare)); }}),
      peer_source_(
          session, background,
          {.send = [this](auto message) { session_.client().Send(std::move(message)); },
           .held = [this] { return VersionToLend(state_); },
           .on_lent = [this](bool lent) { lent ? Dispatch(MemoryLent{}) : Dispatch(MemoryFree{}); }}),
      stalls_(session.loop()) {
  state_.self = session.name();
  state_.compares = session.settings().compare != 0;
  state_.verify = state_.compares || session.settings().checksum != 0;
}

// --- What comes from outside ------------------------------------------------------------------------

void InferenceLoop::OnMessage(protocol::ControllerMessage message) {
  const auto take = [this](auto&& value) {
    using T = std::decay_t<decltype(value)>;
    // Before the rank's own machine: what a new session makes void is given no more.
    if constexpr (std::is_constructible_v<PeerSourceEvent, T>) peer_source_.Dispatch(value);
    if constexpr (std::is_same_v<T, protocol::Offered>) {
      asking_ = false;
      output_.Change([&](auto& output) { output.offered = std::move(value.tensors); });
    } else if constexpr (std::is_same_v<T, protocol::Plan>) {
      if (value.gives) return peer_source_.OnPlan(std::move(value), registered_.memory);
      peer_source_.OnOtherPlan(value.epoch);
      receiver_.OnPlan(std::move(value), registered_.memory);
    } else if constexpr (std::is_same_v<T, protocol::PeerLanding>) {
      peer_source_.OnLanding(std::move(value));
    } else if constexpr (std::is_same_v<T, protocol::Start>) {
      for (const auto& grant : value.grants) peer_source_.OnStart(OrderOf(value, grant));
    } else if constexpr (std::is_same_v<T, protocol::SourceDigests>) {
      receiver_.OnDigests(std::move(value));
    } else if constexpr (std::is_constructible_v<InferenceEvent, T>) {
      if constexpr (std::is_same_v<T, protocol::Lost> || std::is_same_v<T, protocol::Abort>)
        value.reason = AsOutcome(std::move(value.reason));
      Dispatch(std::forward<decltype(value)>(value));
      if constexpr (std::is_same_v<T, protocol::Welcome>)
        if (asking_) AskOffered();
    }
    // Refused: the client ends with its reason. Superseded: nothing had come here of that version.
  };
  std::visit(take, std::move(message));
}

void InferenceLoop::OnEnded(const Status& status) {
  peer_source_.Dispatch(SessionEnded{});
  Dispatch(SessionEnded{status});
  output_.Change([&](auto& output) { output.ended = status; });
  // A call that must not end while a stopped process may write ends all the same, and reports it.
  session_.loop().After(2 * session_.settings().lease, [this] { Dispatch(CallExpired{}); });
}

void InferenceLoop::AskOffered() {
  asking_ = true;
  session_.client().Send(protocol::AskOffered{});
}

/// Of the one before a stopped writer holds the memory.
std::shared_ptr<LandingMemory> InferenceLoop::ReplaceSpare(std::shared_ptr<LandingMemory> spare) {
  // What was prepared to be given lies in the old buffer.
  peer_source_.Dispatch(MemoryReclaimed{.reason = {}, .leaves = true});
  std::swap(registered_.memory, spare);
  receiver_.Drop();
  output_.Change([&](auto& output) { output.memory = registered_.memory; });
  return spare;
}

// --- What the machine wants done --------------------------------------------------------------------

void InferenceLoop::Dispatch(InferenceEvent event) {
  events_.push_back(std::move(event));
  if (std::exchange(feeding_, true)) return;
  while (!events_.empty()) {
    const InferenceEvent next = std::move(events_.front());
    events_.pop_front();
    const Step step = state_.step;
    auto actions = Advance(state_, next);
    Show();
    if (state_.step != step) Measure(step);
    // Before what ends the update goes out: the controller has the spans then.
    stalls_.Watch(state_.step != Step::kNone);
    if (auto spans = phases_.Look(state_, Clock::now(), stalls_.seconds()))
      session_.client().Send(std::move(*spans));
    for (auto& action : actions) std::visit([this](auto& a) { Execute(a); }, action);
  }
  feeding_ = false;
}

/// Before any action: it may let the live tensors change, and then nobody may see a version.
void InferenceLoop::Show() {
  const bool changed = output_.Change([this](auto& output) {
    const bool other = output.served != state_.served || output.state != state_.state;
    output.served = state_.served;
    output.state = state_.state;
    output.last_error = state_.last_error;
    output.idle = state_.step == Step::kNone;
    output.lent = state_.lent;
    return other;
  });
  if (changed) session_.client().SetServed(state_.state, state_.served, state_.newest);
}

/// The machine has left a step.
void InferenceLoop::Measure(Step left) {
  const TimePoint now = Clock::now();
  const Duration took = now - std::exchange(step_began_, now);
  if (left != Step::kNone) trace::TimingNamed(StrCat("inference.", NameOf(left))).Add(took);
  if (left == Step::kWriting && state_.step == Step::kFencing)
    trace::CounterNamed("inference.bytes").Add(state_.bytes);
  if (state_.step == Step::kAborting) trace::CounterNamed("inference.aborts").Add();
}

void InferenceLoop::Execute(const SendRegistration&) {
  if (registered_.memory == nullptr) return;
  session_.client().Send(protocol::Register{.shards = InfosOf(registered_.memory->shards()),
                                            .rules = {},
                                            .landing = state_.landing,
                                            .state = state_.state,
                                            .version = state_.served,
                                            .shares = state_.shares,
                                            .landed = state_.landed,
                                            .controlled = state_.controlled,
                                            .newest = state_.newest,
                                            .unwanted = registered_.options.unwanted,
                                            .group_model = model_,
                                            .parts = registered_.memory->parts()});
  session_.client().Send(registered_.memory->Map());
}

void InferenceLoop::Execute(const ReclaimMemory&) {
  const Status reason(
      Code::kCancelled,
      "its engine needed the memory while it sent the version on; if that ends the update, let trainers "
      "publish again");
  peer_source_.Dispatch(MemoryReclaimed{.reason = reason});
}

void InferenceLoop::Execute(const RevokeGrants& action) {
  receiver_.Revoke(action);
  writers_.Watch(action.update, receiver_.grants());
}

void InferenceLoop::Execute(const RunSwitch& action) {
  output_.Change([&](auto& output) {
    output.to_switch = {.update = action.update,
                        .version = state_.version,
                        .memory = registered_.memory,
                        .call = registered_.options.on_switch};
  });
}

void InferenceLoop::Execute(const AnswerCall& action) {
  output_.Change([&](auto& output) { output.answer = action; });
}

}  // namespace weightcast::worker
