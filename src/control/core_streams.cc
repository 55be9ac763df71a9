#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/advice.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "control/core.h"
#include "control/token.h"
#include "protocol/identity.h"
#include "protocol/limits.h"

// Streams come and go; sessions outlive them.
namespace weightcast::control {
namespace {

/// Of all that Offered tells of a registration, in its order.
uint64_t HashOfTensors(const protocol::Register& registration) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15ULL;
  uint64_t hash = 0;
  for (const protocol::ShardInfo& shard : registration.shards) {
    hash = hash * kPrime + Hash64(shard.tensor.name) + static_cast<uint64_t>(shard.tensor.dtype);
    for (const int64_t extent : shard.tensor.shape) hash = hash * kPrime + static_cast<uint64_t>(extent);
    hash = hash * kPrime + (shard.declared ? 1 : 0);
  }
  return hash;
}

/// By name: a tensor that several trainers hold is there once. Of trainers that hold parts of the same
/// tensors, as hundreds may, one is enough.
protocol::Offered OfferedOf(const std::vector<const protocol::Register*>& registrations) {
  std::map<std::string_view, const TensorInfo*> tensors;
  for (const protocol::Register* registration : registrations)
    for (const protocol::ShardInfo& shard : registration->shards)
      if (!shard.declared) tensors.emplace(shard.tensor.name, &shard.tensor);
  protocol::Offered offered;
  for (const auto& [name, tensor] : tensors) offered.tensors.push_back(*tensor);
  return offered;
}

/// Who has the key of one role or engine does not speak as another.
Status CheckMember(const stream::Member& proven, const protocol::WorkerName& name) {
  if (stream::Covers(proven, MemberOf(name))) return Status::Ok();
  return {Code::kPermission, StrCat("its token is for ", stream::MemberText(proven), ", and this process is ",
                                    protocol::ToString(name), "; give it one of `weightcast token --role ",
                                    stream::RoleName(MemberOf(name).role), "`")};
}

/// An incarnation is known to all who exchange bytes with it; its secret only to its process.
Status CheckIncarnation(const protocol::Hello& hello) {
  if (protocol::IncarnationOf(hello.secret) == hello.incarnation) return Status::Ok();
  return {Code::kPermission,
          StrCat(protocol::ToString(hello.name), " does not prove its incarnation: another ",
                 "process has it, or its secret was lost; start this process again")};
}

}  // namespace

void Core::OnOpen(const std::shared_ptr<WorkerStream>& stream) {
  strays_.push_back({stream, Clock::now() + config_.lease, false});  // Until it says Hello.
}

void Core::OnClosed(const std::shared_ptr<WorkerStream>& stream, const Status& reason) {
  std::erase_if(strays_, [&](const Stray& stray) { return stray.stream == stream; });
  const auto owner = by_stream_.find(stream.get());
  if (owner == by_stream_.end()) return;
  Session& session = *sessions_.at(owner->second);
  by_stream_.erase(owner);
  session.stream.reset();
  // What the stream was closed for may be an offence, not a break.
  if (reason.code() == Code::kProtocol || reason.code() == Code::kCorrupt) {
    Offend(session, reason);
    return;
  }
  breaks_.Add();
  Apply(*session.model, StreamBroken{session.id});
}

void Core::OnMessage(const std::shared_ptr<WorkerStream>& stream, Incoming incoming) {
  const auto owner = by_stream_.find(stream.get());
  if (owner != by_stream_.end()) {
    Hear(*sessions_.at(owner->second), std::move(incoming));
  } else if (std::holds_alternative<protocol::Hello>(incoming.message)) {
    OnHello(stream, incoming);
  }  // Else its session is over, or has not begun: nobody listens.
  stream->Continue();
}

Core::Model* Core::ModelFor(const std::string& name) {
  auto& model = models_[name];
  if (model == nullptr) {
    if (models_.size() > protocol::kMaxModels) {
      models_.erase(name);
      return nullptr;
    }
    model = std::make_unique<Model>(name);
  }
  return model.get();
}

Core::Session* Core::FindResumable(const Incoming& incoming, const protocol::Hello& hello) {
  if (incoming.session == 0) return nullptr;
  for (auto& [id, session] : sessions_) {
    if (session->key != incoming.session || session->hello.name != hello.name ||
        session->hello.incarnation != hello.incarnation || session->model->name != hello.model)
      continue;
    // The old stream may not have ended yet: what it took from now on would be missing on the new one.
    if (session->stream != nullptr) session->stream->Bind(nullptr);
    return session->link->Rewind(incoming.acknowledged) ? session.get() : nullptr;
  }
  return nullptr;
}

void Core::OnHello(const std::shared_ptr<WorkerStream>& stream, Incoming& incoming) {
  const auto stray = std::find_if(strays_.begin(), strays_.end(),
                                  [&](const Stray& known) { return known.stream == stream; });
  if (stray == strays_.end() || stray->closing) return;
  auto& hello = std::get<protocol::Hello>(incoming.message);
  if (const Status version = protocol::CheckProtocol(hello.protocol); !version.ok())
    return RefuseStream(stream, hello, version);  // Nothing else of it could be read.
  recent_.AddReceived({hello.model, hello.name}, incoming.number, incoming.bytes, incoming.message);
  if (hello.model.empty())
    return RefuseStream(
        stream, hello,
        {Code::kInvalidArgument,
         StrCat(protocol::ToString(hello.name), " has joined without the name of its model; set model")});
  if (const Status allowed = CheckMember(stream->member(), hello.name); !allowed.ok())
    return RefuseStream(stream, hello, allowed);
  if (const Status proven = CheckIncarnation(hello); !proven.ok()) return RefuseStream(stream, hello, proven);
  if (kept_.Bars(hello, Clock::now())) {  // It tries again, until those have come or their time is over.
    strays_.erase(stray);
    return stream->Abort();
  }
  if (const Status followed = FollowTerm(hello); !followed.ok()) return RefuseStream(stream, hello, followed);
  kept_.Release(hello);
  if (Session* known = FindResumable(incoming, hello)) return Resume(*known, stream);
  Model* model = ModelFor(hello.model);
  if (model == nullptr)
    return RefuseStream(stream, hello,
                        {Code::kExhausted, StrCat("this controller serves ", protocol::kMaxModels,
                                                  " models already; use another for more")});
  strays_.erase(stray);
  auto session = std::make_unique<Session>();
  session->id = ++last_session_;
  session->key = RandomId();
  session->model = model;
  session->link = std::make_shared<SessionLink>();
  session->stream = stream;
  session->heard = Clock::now();
  session->hello = hello;
  const SessionId id = session->id;
  by_stream_[stream.get()] = id;
  stream->Bind(session->link);
  sessions_[id] = std::move(session);
  Apply(*model, Attached{id, hello});
}

void Core::Resume(Session& session, const std::shared_ptr<WorkerStream>& stream) {
  std::erase_if(strays_, [&](const Stray& stray) { return stray.stream == stream; });
  if (session.stream != nullptr) {  // The worker has noticed the break first.
    by_stream_.erase(session.stream.get());
    session.stream->Abort();
    Apply(*session.model, StreamBroken{session.id});
  }
  session.stream = stream;
  session.heard = Clock::now();
  by_stream_[stream.get()] = session.id;
  Welcome(
      session,
      {.term = config_.term, .run = session.model->state.runs.run, .lease_seconds = Seconds(config_.lease)});
  stream->Bind(session.link);
  Apply(*session.model, Resumed{session.id});
}

void Core::Welcome(Session& session, const protocol::Welcome& welcome) {
  const SharedPacket packet = *MakePacket(protocol::ControllerMessage(welcome));
  NoteSent(session, 0, packet);
  session.link->PushUrgent(packet, session.key);
}

void Core::NoteSent(const Session& session, uint64_t number, const SharedPacket& packet) {
  recent_.AddSent({session.model->name, session.hello.name}, number, packet);
}

void Core::RefuseStream(const std::shared_ptr<WorkerStream>& stream, const protocol::Hello& hello,
                        const Status& reason) {
  const auto link = std::make_shared<SessionLink>();
  if (auto packet = MakePacket(protocol::ControllerMessage(protocol::Refused{reason})); packet.ok()) {
    recent_.AddSent({hello.model, hello.name}, 0, *packet);
    link->PushUrgent(*packet);
  }
  for (Stray& stray : strays_) stray.closing = stray.closing || stray.stream == stream;
  stream->Bind(link);
  stream->CloseWhenIdle(reason);
}

void Core::Hear(Session& session, Incoming incoming) {
  session.heard = Clock::now();
  messages_in_.Add();
  if (!session.link->Acknowledge(incoming.acknowledged))
    return Offend(session,
                  {Code::kProtocol,
                   "it acknowledged a message that was not sent; use the same weightcast on all hosts"});
  if (std::holds_alternative<protocol::Heartbeat>(incoming.message)) return;
  bool duplicate = false;
  if (!session.link->Receive(incoming.number, duplicate))
    return Offend(session,
                  {Code::kProtocol, StrCat("message ", incoming.number,
                                           " came out of order; use the same weightcast on all hosts")});
  if (duplicate) return;
  recent_.AddReceived({session.model->name, session.hello.name}, incoming.number, incoming.bytes,
                      incoming.message);
  if (std::holds_alternative<protocol::AskOffered>(incoming.message)) {
    session.asks_offered = true;
    return AnswerAskers(*session.model);
  }
  Model& model = *session.model;
  model.recorder.Said(session.id, incoming.message, model.state, incoming.arrived);
  if (std::holds_alternative<protocol::Spans>(incoming.message)) {
    view_changed_ = true;  // The page shows verdicts.
    return;
  }
  bool registered = false;
  if (auto* registration = std::get_if<protocol::Register>(&incoming.message)) {
    registered = session.hello.name.role == protocol::Role::kTrainer;
    if (registered) session.tensors_hash = HashOfTensors(*registration);
    // What is heavy stays here; the machine gets the rest.
    auto kept = std::make_shared<protocol::Register>();
    kept->shards.swap(registration->shards);
    kept->rules.swap(registration->rules);
    kept->unwanted.swap(registration->unwanted);
    kept->group_model.swap(registration->group_model);
    kept->parts = registration->parts;
    session.registration = std::move(kept);
    session.landing.reset();
  } else if (auto* landing = std::get_if<protocol::LandingMap>(&incoming.message)) {
    session.landing = std::make_shared<const protocol::LandingMap>(std::exchange(*landing, {}));
  } else if (auto* prepared = std::get_if<protocol::Prepared>(&incoming.message)) {
    session.connections = std::exchange(prepared->connections, {});
    view_changed_ = true;
  }
  if (registered) model.offered.reset();
  Apply(model, Said{session.id, std::move(incoming.message)});
  if (registered) AnswerAskers(model);
}

/// Tells them what the trainers have, once all trainers have registered.
void Core::AnswerAskers(Model& model) {
  const Group& all = model.state.roster.trainers();
  if (all.counts.ready < std::max(all.world_size, 1U)) return;  // Before it looks at every session.
  std::vector<Session*> asking;
  std::vector<const protocol::Register*> registrations;
  std::set<uint64_t> known;
  size_t registered = 0;
  size_t trainers = 1;
  for (const auto& [id, session] : sessions_) {
    if (session->model != &model) continue;
    if (session->asks_offered) asking.push_back(session.get());
    if (session->hello.name.role != protocol::Role::kTrainer) continue;
    trainers = session->hello.world_size;
    if (session->registration == nullptr) continue;
    ++registered;
    if (known.insert(session->tensors_hash).second) registrations.push_back(session->registration.get());
  }
  if (asking.empty() || registered < trainers) return;
  if (model.offered == nullptr) {
    auto packet = MakePacket(protocol::ControllerMessage(OfferedOf(registrations)));
    if (!packet.ok()) {
      WC_LOG(kError, "model ", model.name, ": ", packet.status().message());
      return;
    }
    model.offered = std::move(*packet);
  }
  for (Session* session : asking) {
    session->asks_offered = false;
    Push(*session, model.offered);
  }
}

void Core::Offend(Session& session, const Status& reason) {
  Apply(*session.model, Gone{session.id, BrokeProtocol("it", reason)});
}

void Core::CloseStream(Session& session, const Status& reason) {
  if (session.stream == nullptr) return;
  by_stream_.erase(session.stream.get());
  strays_.push_back({session.stream, Clock::now() + config_.lease, true});
  session.stream->CloseWhenIdle(reason);
  session.stream.reset();
}

}  // namespace weightcast::control
