#include <utility>

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

void Core::Push(Session& session, SharedPacket packet) {
  messages_out_.Add();
  if (!session.link->Push(std::move(packet))) {
    // Not from within the actions of another event.
    mailbox_->Post([this, id = session.id] {
      if (const auto at = sessions_.find(id); at != sessions_.end())
        Offend(*at->second, {Code::kPeerDead, "it does not read its messages"});
    });
    return;
  }
  if (session.stream != nullptr) session.stream->Kick();
}

void Core::Do(Model& model, Send& action) {
  const auto at = sessions_.find(action.to);
  if (at == sessions_.end()) return;
  Session& session = *at->second;
  if (const auto* welcome = std::get_if<protocol::Welcome>(&action.message)) {
    Welcome(session, *welcome);
    if (session.stream != nullptr) session.stream->Kick();
    return;
  }
  Measure(model, action.message);
  model.recorder.Told(action.to, action.message, model.state, Clock::now());
  auto packet = MakePacket(action.message);
  if (!packet.ok()) {
    WC_LOG(kError, model.name, ": cannot send ", protocol::NameOf(action.message), ": ",
           packet.status().message());
    return;
  }
  Push(session, std::move(*packet));
}

/// The machine has no clock: the time from the first grant request until every rank was ready is taken here.
void Core::Measure(Model& model, protocol::ControllerMessage& message) {
  const TimePoint now = Clock::now();
  if (const auto* request = std::get_if<protocol::GrantRequest>(&message)) {
    if (model.update == request->update) return;
    model.update = request->update;
    model.began = now;
    model.is_ready = false;
  } else if (const auto* release = std::get_if<protocol::Release>(&message)) {
    if (model.update != release->update || model.is_ready) return;
    model.is_ready = true;
    model.ready = now;
  } else if (auto* done = std::get_if<protocol::Done>(&message)) {
    if (model.update != done->update) return;
    const Duration took = (model.is_ready ? model.ready : now) - model.began;
    done->seconds = Seconds(took);
    if (model.measured != done->update && done->met_policy) {
      updates_.Add(took);
      for (const protocol::RankBytes& receiver : done->receivers) bytes_.Add(receiver.bytes);
    }
    model.measured = done->update;
    model.senders = done->senders;
    model.routes = done->routes;
  }
}

void Core::Do(Model&, Refuse& action) {
  const auto at = sessions_.find(action.session);
  if (at == sessions_.end()) return;
  Session& session = *at->second;
  session.link->Reset();
  if (auto packet = MakePacket(protocol::ControllerMessage(protocol::Refused{action.reason})); packet.ok())
    session.link->PushUrgent(*packet);
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
          .registration = session.registration,
          .landing = session.landing};
}

void Core::Do(Model& model, MakePlan& action) {
  PlanJob job{.job = settings_.job,
              .model = model.name,
              .term = config_.term,
              .epoch = action.epoch,
              .run = model.state.run,
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
  planner_.Submit(std::move(job), [this, &model, box = mailbox_](PlanOutput output) {
    auto shared = std::make_shared<PlanOutput>(std::move(output));
    box->Post([this, &model, shared] { OnPlan(model, std::move(*shared)); });
  });
}

void Core::OnPlan(Model& model, PlanOutput output) {
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
  if (action.level >= GetLogLevel()) Log(action.level, StrCat(model.name, ": ", action.text));
}

}  // namespace weightcast::control
