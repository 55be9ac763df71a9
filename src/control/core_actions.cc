#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "control/core.h"
#include "protocol/messages.h"

// What the machine wants done.
namespace weightcast::control {

void Core::Apply(Model& model, const Event& event) {
  Actions actions;
  Step(config_, model.state, event, actions);
  view_changed_ = true;
  for (Action& action : actions) std::visit([&](auto& what) { Do(model, what); }, action);
  model.recorder.Look(model.state, Clock::now());
}

void Core::Push(Session& session, const SharedPacket& packet) {
  messages_out_.Add();
  const uint64_t number = session.link->Push(packet);
  if (number == 0) {
    // Not from within the actions of another event.
    mailbox_->Post([this, id = session.id] {
      if (const auto at = sessions_.find(id); at != sessions_.end())
        Offend(*at->second,
               {Code::kPeerDead, StrCat("it does not read the controller's messages", kSeePeer)});
    });
    return;
  }
  NoteSent(session, number, packet);
  if (session.stream != nullptr) session.stream->Kick();
}

/// The same to each of them that is here.
void Core::Tell(Model& model, std::span<const SessionId> to, protocol::ControllerMessage& message) {
  std::vector<Session*> here;
  for (const SessionId id : to)
    if (const auto at = sessions_.find(id); at != sessions_.end()) here.push_back(at->second.get());
  if (here.empty()) return;
  if (const auto* welcome = std::get_if<protocol::Welcome>(&message)) {
    for (Session* session : here) {
      Welcome(*session, *welcome);
      if (session->stream != nullptr) session->stream->Kick();
    }
    return;
  }
  meter_.Measure(model.name, model.clock, message);
  const TimePoint now = Clock::now();
  for (const Session* session : here) model.recorder.Told(session->id, message, model.state, now);
  const auto packet = MakePacket(message);
  if (!packet.ok()) {
    WC_LOG(kError, "model ", model.name, ": ", packet.status().message());
    return;
  }
  for (Session* session : here) Push(*session, *packet);
}

void Core::Do(Model&, Refuse& action) {
  const auto at = sessions_.find(action.session);
  if (at == sessions_.end()) return;
  Session& session = *at->second;
  session.link->Reset();
  if (auto packet = MakePacket(protocol::ControllerMessage(protocol::Refused{action.reason})); packet.ok()) {
    NoteSent(session, 0, *packet);
    session.link->PushUrgent(*packet);
  }
  CloseStream(session, action.reason);
  sessions_.erase(at);
}

void Core::Do(Model&, Forget& action) {
  const auto at = sessions_.find(action.session);
  if (at == sessions_.end()) return;
  at->second->link->Reset();
  CloseStream(*at->second, Status::Ok());
  sessions_.erase(at);
}

PlanMember Core::MemberOf(SessionId id) const {
  const Session& session = *sessions_.at(id);
  return {.session = id,
          .member = {.name = session.hello.name,
                     .incarnation = session.hello.incarnation,
                     .addresses = session.hello.addresses},
          .secret = session.hello.secret,
          .registration = session.registration,
          .landing = session.landing};
}

void Core::Do(Model& model, MakePlan& action) {
  PlanJob job{.job = settings_.job,
              .model = model.name,
              .term = config_.term,
              .epoch = action.epoch,
              .run = model.state.runs.run,
              .strategy = plan::StrategyFromName(settings_.strategy).value_or(plan::Strategy::kBalanced),
              .memory = settings_.plan_memory,
              .tables = settings_.tables,
              .sources = {},
              .from_engines = action.from_engines,
              .fused = model.fused,
              .engines = {}};
  for (const SessionId id : action.sources) job.sources.push_back(MemberOf(id));
  for (const auto& engine : action.engines) {
    auto& members = job.engines.emplace_back();
    for (const SessionId id : engine) members.push_back(MemberOf(id));
  }
  planner_.Submit(std::move(job),
                  [this, name = model.name, term = config_.term, box = mailbox_](PlanOutput output) {
                    auto shared = std::make_shared<PlanOutput>(std::move(output));
                    box->Post([this, name, term, shared] { OnPlan(name, term, std::move(*shared)); });
                  });
}

void Core::OnPlan(const std::string& name, const protocol::Term& term, PlanOutput output) {
  if (term != config_.term) return;  // Nobody of that term is here any more.
  Model& model = *models_.at(name);
  if (!output.warning.empty()) WC_LOG(kWarning, output.warning);
  if (!output.status.ok()) {
    Apply(model, PlanFailed{output.epoch, output.status, output.concerned});
    return;
  }
  WC_LOG(kInfo, output.summary);
  const uint32_t epoch = output.epoch;
  model.fused = output.fused;
  model.plan = std::move(output);
  Apply(model, PlanMade{epoch});
  model.plan = {};  // Handed out, or void.
}

void Core::Do(Model& model, HandOut& action) {
  if (model.plan.epoch != action.epoch) return;
  for (const PlanOutput::Handout& handout : model.plan.handouts) {
    const auto at = sessions_.find(handout.session);
    if (at == sessions_.end()) continue;
    for (const SharedPacket& packet : handout.packets) Push(*at->second, packet);
  }
}

void Core::Do(Model& model, SetTimer& action) {
  CancelTimer cancel{action.timer};
  Do(model, cancel);
  const TimePoint at = Clock::now() + action.after;
  timers_.insert({at, &model, action.timer});
  timer_times_[{&model, action.timer}] = at;
}

void Core::Do(Model& model, CancelTimer& action) {
  const auto at = timer_times_.find({&model, action.timer});
  if (at == timer_times_.end()) return;
  timers_.erase({at->second, &model, action.timer});
  timer_times_.erase(at);
}

void Core::Do(Model& model, Note& action) {
  if (!action.counter.empty()) trace::CounterNamed(action.counter).Add();
  if (action.level >= GetLogLevel()) Log(action.level, StrCat("model ", model.name, ": ", action.text));
}

}  // namespace weightcast::control
