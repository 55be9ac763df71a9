#include "control/executor.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "control/terms.h"
#include "protocol/limits.h"

namespace weightcast::control {
namespace {

MachineConfig ConfigOf(const Settings& settings) {
  return {.term = FirstTerm(RandomId()),
          .job = settings.job,
          .together = settings.policy == "all",
          .min_engines = static_cast<uint32_t>(std::min<int64_t>(settings.min_engines, UINT32_MAX)),
          .lease = settings.lease,
          .timeout = settings.timeout,
          .grant_timeout = settings.grant_timeout,
          .commit_timeout = settings.commit_timeout,
          .join_timeout = settings.join_timeout};
}

}  // namespace

Executor::Executor(const Settings& settings, Sessions& sessions, std::shared_ptr<Mailbox> mailbox,
                   std::shared_ptr<PageState> page)
    : settings_(settings),
      config_(ConfigOf(settings)),
      sessions_(sessions),
      mailbox_(std::move(mailbox)),
      meter_(std::move(page)) {}

void Executor::Apply(Model& model, const Event& event) {
  Actions actions;
  Step(config_, model.state, event, actions);
  NoteChange();
  for (Action& action : actions) std::visit([&](auto& what) { Execute(model, what); }, action);
  model.recorder.Look(model.state, Clock::now());
}

void Executor::EndSession(SessionId id, const Status& reason) {
  if (const Session* session = sessions_.Find(id))
    Apply(*session->model, Gone{id, BrokeProtocol("it", reason)});
}

Model* Executor::ModelFor(const std::string& name) {
  if (models_.size() >= protocol::kMaxModels && !models_.contains(name)) return nullptr;
  auto& model = models_[name];
  if (model == nullptr) model = std::make_unique<Model>(name);
  return model.get();
}

void Executor::BeginTerm(const protocol::Term& term) {
  timers_.clear();
  timer_times_.clear();
  models_.clear();
  config_.term = term;
}

/// The same to each of them that is here.
void Executor::SendTo(Model& model, std::span<const SessionId> to, protocol::ControllerMessage& message) {
  std::vector<Session*> here;
  for (const SessionId id : to)
    if (Session* session = sessions_.Find(id)) here.push_back(session);
  if (here.empty()) return;
  if (const auto* welcome = std::get_if<protocol::Welcome>(&message)) {
    for (Session* session : here) {
      sessions_.PushWelcome(*session, *welcome);
      if (session->stream != nullptr) session->stream->Kick();
    }
    return;
  }
  meter_.Measure(model.name, model.clock, message);
  const TimePoint now = Clock::now();
  for (const Session* session : here) model.recorder.Sent(session->id, message, model.state, now);
  const auto packet = MakePacket(message);
  if (!packet.ok()) {
    WC_LOG(kError, "model ", model.name, ": ", packet.status().message());
    return;
  }
  for (Session* session : here) sessions_.Push(*session, *packet);
}

void Executor::Execute(Model& model, MakePlan& action) {
  PlanJob job{.job = settings_.job,
              .model = model.name,
              .term = config_.term,
              .epoch = action.epoch,
              .run = model.state.runs.run,
              .strategy = plan::StrategyFromName(settings_.strategy).value_or(plan::Strategy::kBalanced),
              .memory = settings_.plan_memory,
              .tables = settings_.tables,
              .from_engines = action.from_engines,
              .fused = model.fused};
  const auto member_of = [&](SessionId id) -> PlanMember {
    const Session& session = *sessions_.all().at(id);
    const protocol::Hello& hello = session.hello;
    return {.session = id,
            .member = {.name = hello.name, .incarnation = hello.incarnation, .addresses = hello.addresses},
            .secret = hello.secret,
            .registration = session.registration,
            .landing = session.landing};
  };
  for (const SessionId id : action.sources) job.sources.push_back(member_of(id));
  for (const auto& engine : action.engines) {
    auto& members = job.engines.emplace_back();
    for (const SessionId id : engine) members.push_back(member_of(id));
  }
  planner_.Run([this, &model, term = config_.term, job = std::make_shared<const PlanJob>(std::move(job))] {
    if (ending_) return;
    const auto output = std::make_shared<PlanOutput>();
    {
      const trace::Span span(plans_);
      *output = RunPlan(*job);
    }
    mailbox_->Post([this, &model, term, output] {
      if (term == config_.term) OnPlan(model, std::move(*output));  // Else the model is no more.
    });
  });
}

void Executor::OnPlan(Model& model, PlanOutput output) {
  if (!output.warning.empty()) WC_LOG(kWarning, output.warning);
  if (!output.status.ok()) return Apply(model, PlanFailed{output.epoch, output.status, output.concerned});
  WC_LOG(kInfo, output.summary);
  const uint32_t epoch = output.epoch;
  model.fused = output.fused;
  model.plan = std::move(output);
  Apply(model, PlanMade{epoch});
  model.plan = {};  // Handed out, or void.
}

void Executor::Execute(Model& model, HandOut& action) {
  if (model.plan.epoch != action.epoch) return;
  for (const PlanOutput::Handout& handout : model.plan.handouts) {
    if (Session* session = sessions_.Find(handout.session))
      for (const SharedPacket& packet : handout.packets) sessions_.Push(*session, packet);
  }
}

void Executor::Execute(Model& model, SetTimer& action) {
  Execute(model, CancelTimer{action.timer});
  const TimePoint at = Clock::now() + action.after;
  timers_.insert({at, &model, action.timer});
  timer_times_[{&model, action.timer}] = at;
}

void Executor::Execute(Model& model, const CancelTimer& action) {
  if (const auto timer = timer_times_.extract({&model, action.timer}))
    timers_.erase({timer.mapped(), &model, action.timer});
}

void Executor::FireTimers() {
  const TimePoint now = Clock::now();
  while (next_timer() <= now) {
    const auto [at, model, id] = *timers_.begin();
    Execute(*model, CancelTimer{id});
    Apply(*model, TimerFired{id});
  }
}

void Executor::Execute(Model& model, Note& action) {
  if (!action.counter.empty()) trace::CounterNamed(action.counter).Add();
  if (action.level >= GetLogLevel()) Log(action.level, StrCat("model ", model.name, ": ", action.text));
}

}  // namespace weightcast::control
