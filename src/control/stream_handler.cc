#include "control/stream_handler.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "control/terms.h"
#include "control/token.h"
#include "protocol/identity.h"
#include "protocol/limits.h"

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

/// Who has the key of one role or engine does not speak as another. An incarnation is known to all who
/// exchange bytes with it; its secret only to its process.
Status CheckWorker(const stream::Member& proven, const protocol::Hello& hello) {
  const protocol::WorkerName& name = hello.name;
  if (hello.model.empty())
    return Error(Code::kInvalidArgument, protocol::ToString(name),
                 " has joined without the name of its model; give one in the option model");
  if (!stream::Covers(proven, MemberOf(name)))
    return Error(Code::kPermission, "the token of ", protocol::ToString(name), " is for ",
                 stream::MemberText(proven),
                 ", which is another role or engine; give that process one of `weightcast token --role ",
                 stream::RoleName(MemberOf(name).role), "`");
  if (protocol::IncarnationOf(hello.secret) != hello.incarnation)
    return Error(Code::kPermission, protocol::ToString(name),
                 " does not prove its identity: it uses the incarnation of another process, ",
                 "or has lost the secret of its own; start it again");
  return Status::Ok();
}

}  // namespace

void StreamHandler::OnClosed(const WorkerStreamPtr& stream, const Status& reason) {
  Session* session = sessions_.RemoveStream(stream);
  if (session == nullptr) return;
  // What the stream was closed for may be an offence, not a break.
  if (reason.code() == Code::kProtocol || reason.code() == Code::kCorrupt)
    return executor_.EndSession(session->id, reason);
  breaks_.Add();
  executor_.Apply(*session->model, StreamBroken{session->id});
}

void StreamHandler::OnMessage(const WorkerStreamPtr& stream, Incoming& incoming) {
  const StreamState* carried = sessions_.FindStream(stream);
  if (carried != nullptr && carried->session != nullptr) {
    Handle(*carried->session, incoming);
  } else if (carried != nullptr && !carried->closing &&
             std::holds_alternative<protocol::Hello>(incoming.message)) {
    OnHello(stream, incoming);
  }  // Else its session is over, or has not begun: nobody listens.
  stream->Continue();
}

void StreamHandler::OnHello(const WorkerStreamPtr& stream, const Incoming& incoming) {
  const auto& hello = std::get<protocol::Hello>(incoming.message);
  if (const Status version = protocol::CheckProtocol(hello.protocol); !version.ok())
    return sessions_.RefuseStream(stream, hello, version);  // Nothing else of it could be read.
  sessions_.trace().AddReceived({hello.model, hello.name}, incoming.number, incoming.bytes, incoming.message);
  Status allowed = CheckWorker(stream->member(), hello);
  if (allowed.ok() && kept_.Bars(hello, Clock::now())) {
    sessions_.RemoveStream(stream);  // It tries again, until those have come or their time is over.
    return stream->Abort();
  }
  if (allowed.ok()) allowed = FollowTerm(hello);
  if (!allowed.ok()) return sessions_.RefuseStream(stream, hello, allowed);
  kept_.Release(hello);
  if (Session* known = sessions_.FindResumable(incoming, hello)) return Resume(*known, stream);
  Model* model = executor_.ModelFor(hello.model);
  if (model == nullptr)
    return sessions_.RefuseStream(
        stream, hello,
        Error(Code::kExhausted, "this controller serves ", protocol::kMaxModels,
              " models already, the most that it may; use another controller for this model"));
  const SessionId id = sessions_.Add(*model, hello, stream).id;
  executor_.Apply(*model, Attached{id, hello});
}

void StreamHandler::Resume(Session& session, const WorkerStreamPtr& stream) {
  if (session.stream != nullptr) {  // The worker has noticed the break first.
    session.stream->Abort();
    sessions_.RemoveStream(session.stream);
    executor_.Apply(*session.model, StreamBroken{session.id});
  }
  sessions_.Attach(session, stream);
  sessions_.PushWelcome(session, {.term = executor_.config().term,
                                  .run = session.model->state.runs.run,
                                  .lease_seconds = Seconds(executor_.config().lease)});
  stream->Bind(session.link);
  executor_.Apply(*session.model, Resumed{session.id});
}

Status StreamHandler::FollowTerm(const protocol::Hello& hello) {
  const MachineConfig& config = executor_.config();
  if (hello.term <= config.term || hello.job != config.job || sessions_.IsTaken(hello)) return Status::Ok();
  const auto number = NumberAfter(config.term, hello.term);
  if (!number.ok()) {
    WC_LOG_LIMITED(kWarning, "refused ", protocol::ToString(hello.name), " of ", hello.host, ": ",
                   number.status().message());
    return number.status();
  }
  WC_LOG_LIMITED(kInfo, protocol::ToString(hello.name), " has followed term ", hello.term.number,
                 "; this controller, at ", config.term.number, ", begins term ", *number,
                 ", and all workers join again");
  // As if this controller had started again. Streams that have not said Hello stay.
  const TimePoint until = Clock::now() + config.lease;
  for (const auto& [id, session] : sessions_.all()) {
    if (session->stream == nullptr) continue;
    kept_.Keep(session->hello, until);
    session->stream->Abort();
  }
  sessions_.Clear();
  executor_.BeginTerm({.number = *number, .id = RandomId()});
  return Status::Ok();
}

void StreamHandler::Handle(Session& session, Incoming& incoming) {
  session.heard = Clock::now();
  messages_in_.Add();
  if (!session.link->Acknowledge(incoming.acknowledged))
    return executor_.EndSession(session.id,
                                Error(Code::kProtocol, "it acknowledged message ", incoming.acknowledged,
                                      ", which was not sent; use the same weightcast on all hosts"));
  if (std::holds_alternative<protocol::Heartbeat>(incoming.message)) return;
  bool duplicate = false;
  if (!session.link->Receive(incoming.number, duplicate))
    return executor_.EndSession(session.id,
                                Error(Code::kProtocol, "its message ", incoming.number,
                                      " came out of order; use the same weightcast on all hosts"));
  if (duplicate) return;
  Model& model = *session.model;
  sessions_.trace().AddReceived({model.name, session.hello.name}, incoming.number, incoming.bytes,
                                incoming.message);
  if (std::holds_alternative<protocol::AskOffered>(incoming.message)) {
    session.asks_offered = true;
    return AnswerAskers(model);
  }
  model.recorder.Received(session.id, incoming.message, model.state, incoming.arrived);
  if (std::holds_alternative<protocol::Spans>(incoming.message))
    return executor_.NoteChange();  // The page shows verdicts.
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
  }
  if (registered) model.offered.reset();
  executor_.Apply(model, MessageReceived{session.id, std::move(incoming.message)});
  if (registered) AnswerAskers(model);
}

/// Tells them what the trainers have, once all trainers have registered.
void StreamHandler::AnswerAskers(Model& model) {
  const Group& all = model.state.roster.trainers();
  if (all.counts.ready < std::max(all.world_size, 1U)) return;  // Before it looks at every session.
  std::vector<Session*> asking;
  std::vector<const protocol::Register*> registrations;
  std::set<uint64_t> known;
  size_t registered = 0;
  size_t trainers = 1;
  for (const auto& [id, session] : sessions_.all()) {
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
    sessions_.Push(*session, model.offered);
  }
}

}  // namespace weightcast::control
