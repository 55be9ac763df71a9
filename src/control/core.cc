#include "control/core.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "base/thread.h"
#include "control/terms.h"

namespace weightcast::control {
namespace {

constexpr Duration kLeastViewInterval = std::chrono::milliseconds(50);
constexpr int kMostBeforeTick = 10'000;
constexpr Duration kViewInterval = std::chrono::seconds(1);

}  // namespace

Core::Core(const Settings& settings, std::shared_ptr<PageState> page)
    : settings_(settings),
      beat_(settings.lease / 4),
      heartbeat_(*MakePacket(protocol::ControllerMessage(protocol::Heartbeat{}))),
      mailbox_(std::make_shared<Mailbox>()),
      page_(std::move(page)) {
  config_.term = FirstTerm(RandomId());
  config_.job = settings.job;
  config_.together = settings.policy == "all";
  config_.min_engines = static_cast<uint32_t>(std::min<int64_t>(settings.min_engines, UINT32_MAX));
  config_.lease = settings.lease;
  config_.timeout = settings.timeout;
  config_.grant_timeout = settings.grant_timeout;
  config_.commit_timeout = settings.commit_timeout;
  config_.join_timeout = settings.join_timeout;
  next_tick_ = Clock::now() + beat_;
  next_view_ = Clock::now() + kViewInterval;
  if (page_ != nullptr) page_->Show(View());
  collector_ = std::make_unique<trace::Collector>([this](auto& metrics) { Collect(metrics); });
}

Status Core::Start() {
  WC_RETURN_IF_ERROR(planner_.Start());
  WC_ASSIGN_OR_RETURN(thread_, StartThread("wc-controller", [this] { Run(); }));
  return Status::Ok();
}

Core::~Core() { Stop(); }

void Core::Stop() {
  if (!thread_.joinable()) return;
  collector_.reset();
  mailbox_->Post([this] { stop_ = true; });
  thread_.join();
  mailbox_->Close();
}

ListenerHandlers Core::Handlers() {
  return {
      .on_open = [this, box = mailbox_](auto stream) { box->Post([this, stream] { OnOpen(stream); }); },
      .on_message =
          [this, box = mailbox_](auto stream, Incoming incoming) {
            // std::function wants to be copied; the message need not be.
            auto shared = std::make_shared<Incoming>(std::move(incoming));
            box->Post([this, stream, shared] { OnMessage(stream, std::move(*shared)); });
          },
      .on_closed =
          [this, box = mailbox_](auto stream, Status reason) {
            box->Post([this, stream, reason = std::move(reason)] { OnClosed(stream, reason); });
          },
      .on_watch =
          [this, box = mailbox_](auto sink) {
            box->Post([this, sink] {
              watchers_[sink] = {};
              view_changed_ = true;
            });
          },
      .on_ask =
          [this, box = mailbox_](auto sink, protocol::ObserverMessage question) {
            box->Post([this, sink, question = std::move(question)] {
              std::visit([&](const auto& ask) { OnAsk(sink, ask); }, question);
            });
          },
      .on_unwatch = [this, box = mailbox_](auto sink) { box->Post([this, sink] { watchers_.erase(sink); }); },
  };
}

void Core::Run() {
  while (!stop_) {
    TimePoint until = std::min(next_tick_, next_view_);
    if (!timers_.empty()) until = std::min(until, timers_.begin()->at);
    if (view_changed_ && IsWatched()) until = std::min(until, earliest_view_);
    const bool watched = AnyUnderWay();
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
    FireTimers();
    if (now >= next_view_ || (view_changed_ && now >= earliest_view_)) ShowViews();
  }
  for (auto& [id, session] : sessions_)
    if (session->stream != nullptr) session->stream->Abort();
  for (const Stray& stray : strays_) stray.stream->Abort();
}

void Core::Tick() {
  const TimePoint now = Clock::now();
  const Duration late = now - next_tick_;
  next_tick_ = now + beat_;
  std::vector<SessionId> dead;
  for (auto& [id, session] : sessions_) {
    // This thread was held up, so nothing could be heard: that is nobody's silence.
    if (late > beat_) session->heard += late;
    if (now - session->heard > config_.lease) {
      dead.push_back(id);
    } else if (session->stream != nullptr) {
      session->link->PushUrgent(heartbeat_);
      session->stream->Kick();
    }
  }
  for (const SessionId id : dead) {
    if (const auto at = sessions_.find(id); at != sessions_.end())
      Offend(*at->second,
             {Code::kPeerDead, StrCat("missed heartbeats for ", Seconds(config_.lease),
                                      " s; declared dead: check that it runs, and the network to it")});
  }
  std::erase_if(strays_, [&](const Stray& stray) {
    if (stray.until > now) return false;
    stray.stream->Abort();
    return true;
  });
}

void Core::FireTimers() {
  const TimePoint now = Clock::now();
  while (!timers_.empty() && timers_.begin()->at <= now) {
    const Timer timer = *timers_.begin();
    timers_.erase(timers_.begin());
    timer_times_.erase({timer.model, timer.id});
    Apply(*timer.model, TimerFired{timer.id});
  }
}

void Core::ShowViews() {
  const TimePoint now = Clock::now();
  next_view_ = now + kViewInterval;
  earliest_view_ = now + kLeastViewInterval;
  view_changed_ = false;
  ShowTraces();
  const bool asked = std::ranges::any_of(watchers_, [](const auto& one) { return !one.second.asks; });
  if (page_ == nullptr && !asked) return;
  protocol::ClusterView view = View();
  const auto packet = asked ? MakePacket(view) : Result<SharedPacket>(nullptr);
  if (page_ != nullptr) {
    page_->Show(std::move(view));
    for (auto& [name, model] : models_)
      for (const auto& explained : model->recorder.TakeChanged()) page_->Explain(*explained);
  }
  // A large job's views take time: no more than a twentieth of this thread's.
  const TimePoint end = Clock::now();
  earliest_view_ = std::max(earliest_view_, end + 20 * (end - now));
  if (!asked) return;
  if (!packet.ok()) {
    WC_LOG_LIMITED(kError, "cannot show the cluster: ", packet.status().message());
    return;
  }
  for (const auto& [sink, watcher] : watchers_)
    if (!watcher.asks) sink->Show(*packet);
}

/// Each question is answered, if only to say that nothing was said.
void Core::ShowTraces() {
  for (auto& [sink, watcher] : watchers_) {
    if (!watcher.from) continue;
    const auto packet = MakePacket(recent_.From(*watcher.from));
    watcher.from.reset();
    if (packet.ok()) sink->Show(*packet);
  }
}

protocol::ClusterView Core::View() const {
  protocol::ClusterView view{.term = config_.term, .job = settings_.job, .models = {}};
  for (const auto& [name, model] : models_) {
    protocol::ModelView& shown = view.models.emplace_back(ViewOf(model->state));
    shown.model = name;
    shown.senders = model->clock.senders;
    shown.routes = model->clock.routes;
    for (size_t i = 0; i < shown.workers.size(); ++i) {
      const auto session = sessions_.find(model->state.roster.workers()[i].session);
      if (session == sessions_.end()) continue;
      shown.workers[i].host = session->second->hello.host;
      shown.workers[i].addresses = session->second->hello.addresses;
      shown.workers[i].connections = session->second->connections;
    }
  }
  return view;
}

}  // namespace weightcast::control
