#pragma once

#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "control/listener.h"
#include "control/members.h"
#include "control/message_trace.h"
#include "trace/metrics.h"

namespace weightcast::control {

struct Model;
using WorkerStreamPtr = std::shared_ptr<WorkerStream>;

struct Session {
  SessionId id = 0;
  uint64_t key = 0;  ///< Names the session to its worker.
  Model* model = nullptr;
  protocol::Hello hello;
  std::shared_ptr<SessionLink> link;
  WorkerStreamPtr stream;  ///< nullptr while broken.
  TimePoint heard;
  std::shared_ptr<const protocol::Register> registration;
  std::shared_ptr<const protocol::LandingMap> landing;
  std::vector<std::string> connections;  ///< As the worker last told them.
  bool asks_offered = false;
  uint64_t tensors_hash = 0;  ///< Of what a trainer has registered.
};

/// What a stream carries.
struct StreamState {
  Session* session = nullptr;
  TimePoint until;  ///< Without a session: how long it may stay.
  bool closing = false;
};

/// The sessions of the term, the streams, and what is sent over them. A stream carries a session from Hello
/// until one of the two ends. Belongs to the thread wc-controller.
class Sessions {
 public:
  /// `overflowed`: the worker does not read what is sent to it. It must not end the session at once.
  Sessions(Duration lease, std::function<void(SessionId)> overflowed)
      : lease_(lease), overflowed_(std::move(overflowed)) {}

  [[nodiscard]] const std::map<SessionId, std::unique_ptr<Session>>& all() const { return sessions_; }
  /// nullptr: it is over.
  [[nodiscard]] Session* Find(SessionId id) const;
  /// Whether another process is here as this worker: the machine refuses it.
  [[nodiscard]] bool IsTaken(const protocol::Hello& hello) const;
  /// The session that this Hello goes on with, ready for a new stream; nullptr: none.
  Session* FindResumable(const Incoming& incoming, const protocol::Hello& hello);
  Session& Add(Model& model, const protocol::Hello& hello, const WorkerStreamPtr& stream);
  /// Says Refused unless `refusal` is Ok. Nothing follows, and nothing of it is heard.
  void End(SessionId id, const Status& refusal);
  /// Ends all without a word. Streams without a session stay.
  void Clear();

  /// It may say Hello within a lease.
  void AddStream(const WorkerStreamPtr& stream) { streams_[stream].until = Clock::now() + lease_; }
  /// nullptr: it was removed, or its session is over.
  [[nodiscard]] const StreamState* FindStream(const WorkerStreamPtr& stream) const;
  void Attach(Session& session, const WorkerStreamPtr& stream);
  /// Returns the session that it has carried; nullptr: none.
  Session* RemoveStream(const WorkerStreamPtr& stream);
  void RefuseStream(const WorkerStreamPtr& stream, const protocol::Hello& hello, const Status& reason);
  /// Those without a session that have stayed for too long.
  void AbortExpired(TimePoint now);
  void AbortAll();

  void Push(Session& session, const SharedPacket& packet);
  void PushWelcome(Session& session, const protocol::Welcome& welcome);
  [[nodiscard]] MessageTrace& trace() { return trace_; }  ///< What was said.

 private:
  void PushRefused(SessionLink& link, const protocol::Hello& hello, const Status& reason);

  const Duration lease_;
  const std::function<void(SessionId)> overflowed_;
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  std::unordered_map<WorkerStreamPtr, StreamState> streams_;
  SessionId last_ = 0;
  MessageTrace trace_;
  trace::Counter& messages_out_ = trace::CounterNamed("control.messages_out");
};

}  // namespace weightcast::control
