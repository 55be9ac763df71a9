#include "control/sessions.h"

#include <algorithm>

#include "base/random.h"

namespace weightcast::control {

Session* Sessions::Find(SessionId id) const {
  const auto at = sessions_.find(id);
  return at == sessions_.end() ? nullptr : at->second.get();
}

bool Sessions::IsTaken(const protocol::Hello& hello) const {
  return std::ranges::any_of(sessions_, [&](const auto& one) {
    const Session& session = *one.second;
    return session.stream != nullptr && session.hello.name == hello.name &&
           session.hello.model == hello.model && session.hello.incarnation != hello.incarnation;
  });
}

Session* Sessions::FindResumable(const Incoming& incoming, const protocol::Hello& hello) {
  if (incoming.session == 0) return nullptr;
  for (const auto& [id, session] : sessions_) {
    if (session->key != incoming.session || session->hello.name != hello.name ||
        session->hello.incarnation != hello.incarnation || session->hello.model != hello.model)
      continue;
    // The old stream may not have ended yet: what it took from now on would be missing on the new one.
    if (session->stream != nullptr) session->stream->Bind(nullptr);
    return session->link->Rewind(incoming.acknowledged) ? session.get() : nullptr;
  }
  return nullptr;
}

Session& Sessions::Add(Model& model, const protocol::Hello& hello, const WorkerStreamPtr& stream) {
  auto& session = sessions_[++last_];
  session = std::make_unique<Session>();
  session->id = last_;
  session->key = RandomId();
  session->model = &model;
  session->link = std::make_shared<SessionLink>();
  session->hello = hello;
  Attach(*session, stream);
  stream->Bind(session->link);
  return *session;
}

void Sessions::End(SessionId id, const Status& refusal) {
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return;
  Session& session = *at->second;
  session.link->Reset();
  if (!refusal.ok()) PushRefused(*session.link, session.hello, refusal);
  if (session.stream != nullptr) {
    streams_[session.stream] = {.until = Clock::now() + lease_, .closing = true};
    session.stream->CloseWhenIdle(refusal);
  }
  sessions_.erase(at);
}

void Sessions::Clear() {
  std::erase_if(streams_, [](const auto& one) { return one.second.session != nullptr; });
  sessions_.clear();
}

const StreamState* Sessions::FindStream(const WorkerStreamPtr& stream) const {
  const auto at = streams_.find(stream);
  return at == streams_.end() ? nullptr : &at->second;
}

void Sessions::Attach(Session& session, const WorkerStreamPtr& stream) {
  session.stream = stream;
  session.heard = Clock::now();
  streams_[stream].session = &session;
}

Session* Sessions::RemoveStream(const WorkerStreamPtr& stream) {
  const auto entry = streams_.extract(stream);
  if (entry.empty() || entry.mapped().session == nullptr) return nullptr;
  entry.mapped().session->stream.reset();
  return entry.mapped().session;
}

void Sessions::RefuseStream(const WorkerStreamPtr& stream, const protocol::Hello& hello,
                            const Status& reason) {
  const auto link = std::make_shared<SessionLink>();
  PushRefused(*link, hello, reason);
  streams_[stream].closing = true;
  stream->Bind(link);
  stream->CloseWhenIdle(reason);
}

void Sessions::AbortExpired(TimePoint now) {
  std::erase_if(streams_, [&](const auto& one) {
    const bool expired = one.second.session == nullptr && one.second.until <= now;
    if (expired) one.first->Abort();
    return expired;
  });
}

void Sessions::AbortAll() {
  for (const auto& [stream, carried] : streams_) stream->Abort();
}

void Sessions::Push(Session& session, const SharedPacket& packet) {
  messages_out_.Add();
  const uint64_t number = session.link->Push(packet);
  if (number == 0) return overflowed_(session.id);
  trace_.AddSent({session.hello.model, session.hello.name}, number, packet);
  if (session.stream != nullptr) session.stream->Kick();
}

void Sessions::PushWelcome(Session& session, const protocol::Welcome& welcome) {
  const SharedPacket packet = *MakePacket(protocol::ControllerMessage(welcome));
  trace_.AddSent({session.hello.model, session.hello.name}, 0, packet);
  session.link->PushUrgent(packet, session.key);
}

void Sessions::PushRefused(SessionLink& link, const protocol::Hello& hello, const Status& reason) {
  const auto packet = MakePacket(protocol::ControllerMessage(protocol::Refused{reason}));
  if (!packet.ok()) return;
  trace_.AddSent({hello.model, hello.name}, 0, *packet);
  link.PushUrgent(*packet);
}

}  // namespace weightcast::control
