#include "control/core.h"

#include <algorithm>
#include <future>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "base/thread.h"

namespace weightcast::control {
namespace {

constexpr int kMostBeforeTick = 10'000;
/// From the first publication to the end of an update this thread wakes so often, and did not run if it comes
/// so much later.
constexpr Duration kLookInterval = std::chrono::milliseconds(10);
constexpr Duration kStall = std::chrono::milliseconds(50);
/// A controller that is too busy to answer within this is left out of one scrape.
constexpr auto kViewPatience = std::chrono::milliseconds(500);

void TellModel(const protocol::ModelView& model, std::vector<trace::Metric>& metrics) {
  const auto tell = [&](std::string name, double value, trace::Labels labels) {
    labels.insert(labels.begin(), {"model", model.model});
    metrics.push_back({std::move(name), value, std::move(labels), /*rises=*/false});
  };
  tell("control.version", static_cast<double>(model.version.number), {});
  tell("control.epoch", model.epoch, {});
  std::map<std::string, int> alive{{"trainer", 0}, {"inference", 0}};
  for (const protocol::WorkerView& worker : model.workers)
    alive[worker.name.role == protocol::Role::kTrainer ? "trainer" : "inference"] += worker.alive ? 1 : 0;
  for (const auto& [role, count] : alive) tell("control.workers", count, {{"role", role}});
  for (const protocol::EngineView& engine : model.engines) {
    tell("control.engine_version", static_cast<double>(engine.version.number), {{"engine", engine.name}});
    tell("control.engine_state", 1,
         {{"engine", engine.name}, {"state", std::string(protocol::NameOf(engine.state))}});
  }
}

}  // namespace

Core::Core(const Settings& settings, const std::shared_ptr<PageState>& page)
    : beat_(settings.lease / 4),
      heartbeat_(*MakePacket(protocol::ControllerMessage(protocol::Heartbeat{}))),
      sessions_(settings.lease,
                [this](SessionId id) {
                  mailbox_->Post([this, id] {
                    executor_.EndSession(
                        id, Error(Code::kPeerDead, "it does not read the controller's messages", kSeePeer));
                  });
                }),
      executor_(settings, sessions_, mailbox_, page),
      observers_(executor_, sessions_, page),
      streams_(sessions_, executor_),
      next_tick_(Clock::now() + beat_) {
  collector_ = std::make_unique<trace::Collector>([this](auto& metrics) { Collect(metrics); });
}

Status Core::Start() {
  WC_RETURN_IF_ERROR(executor_.Start());
  WC_ASSIGN_OR_RETURN(thread_, StartThread("wc-controller", [this] { Run(); }));
  return Status::Ok();
}

void Core::Stop() {
  if (!thread_.joinable()) return;
  collector_.reset();
  mailbox_->Post([this] { stop_ = true; });
  thread_.join();
  mailbox_->Close();
}

ListenerHandlers Core::Handlers() {
  const auto posted = [box = mailbox_](auto task) {
    return [box, task](auto... told) {
      // std::function wants to be copied; a message need not be.
      auto shared = std::make_shared<std::tuple<decltype(told)...>>(std::move(told)...);
      box->Post([task, shared] { std::apply(task, *shared); });
    };
  };
  return {
      .on_open = posted([this](const auto& stream) { sessions_.AddStream(stream); }),
      .on_message = posted([this](auto& stream, auto& message) { streams_.OnMessage(stream, message); }),
      .on_closed = posted([this](auto& stream, auto& reason) { streams_.OnClosed(stream, reason); }),
      .on_watch = posted([this](auto& sink) { observers_.Add(sink); }),
      .on_ask = posted([this](auto& sink, auto& question) {
        std::visit([&](const auto& ask) { observers_.Answer(sink, ask); }, question);
      }),
      .on_unwatch = posted([this](auto& sink) { observers_.Remove(sink); }),
  };
}

void Core::Run() {
  while (!stop_) {
    TimePoint until = std::min({next_tick_, observers_.next(), executor_.next_timer()});
    const bool watched = std::ranges::any_of(executor_.models(), [](const auto& one) {
      return one.second->recorder.open() || one.second->recorder.awaited();
    });
    if (watched) until = std::min(until, next_look_);
    const auto taken = mailbox_->Take(until);
    WatchStalls(watched);
    if (taken) (*taken)();
    const TimePoint now = Clock::now();
    // What has arrived counts before what has run out: a thread that was held up must not take it for
    // silence.
    if (now >= next_tick_) {
      for (int i = 0; i < kMostBeforeTick; ++i) {
        const auto task = mailbox_->Take(now);
        if (!task) break;
        (*task)();
      }
      Tick();
    }
    executor_.FireTimers();
    observers_.ShowIfDue(now);
  }
  sessions_.AbortAll();
}

void Core::Tick() {
  const Duration lease = executor_.config().lease;
  const TimePoint now = Clock::now();
  const Duration late = now - next_tick_;
  next_tick_ = now + beat_;
  std::vector<SessionId> dead;
  for (const auto& [id, session] : sessions_.all()) {
    // This thread was held up, so nothing could be heard: that is nobody's silence.
    if (late > beat_) session->heard += late;
    if (now - session->heard > lease) {
      dead.push_back(id);
    } else if (session->stream != nullptr) {
      session->link->PushUrgent(heartbeat_);
      session->stream->Kick();
    }
  }
  for (const SessionId id : dead)
    executor_.EndSession(id, Error(Code::kPeerDead, "missed heartbeats for ", Seconds(lease),
                                   " s; declared dead: check that it runs, and the network to it"));
  sessions_.AbortExpired(now);
}

void Core::WatchStalls(bool watched) {
  const TimePoint now = Clock::now();
  if (watched && now - next_look_ > kStall)
    for (const auto& [name, model] : executor_.models()) model->recorder.Stalled(next_look_, now);
  if (!watched || now >= next_look_) next_look_ = now + kLookInterval;
}

void Core::Collect(std::vector<trace::Metric>& metrics) {
  const auto answer = std::make_shared<std::promise<protocol::ClusterView>>();
  auto view = answer->get_future();
  if (!mailbox_->Post([this, answer] { answer->set_value(observers_.View()); })) return;
  if (view.wait_for(kViewPatience) != std::future_status::ready) return;
  const protocol::ClusterView shown = view.get();
  metrics.push_back({"control.term", static_cast<double>(shown.term.number), {}, /*rises=*/false});
  for (const protocol::ModelView& model : shown.models) TellModel(model, metrics);
}

}  // namespace weightcast::control
