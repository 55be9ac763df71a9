#pragma once

#include "control/executor.h"
#include "control/kept_places.h"

namespace weightcast::control {

/// Takes what comes over the streams of workers, and passes it to the machines as events. Begins the next
/// term where one is due (docs/protocol.md, "Terms"). Belongs to the thread wc-controller.
class StreamHandler {
 public:
  StreamHandler(Sessions& sessions, Executor& executor) : sessions_(sessions), executor_(executor) {}

  void OnMessage(const WorkerStreamPtr& stream, Incoming& incoming);
  void OnClosed(const WorkerStreamPtr& stream, const Status& reason);

 private:
  void OnHello(const WorkerStreamPtr& stream, const Incoming& incoming);
  void Resume(Session& session, const WorkerStreamPtr& stream);
  /// Begins the next term if a worker has followed one that is not older. kInvalidArgument: it is too far.
  Status FollowTerm(const protocol::Hello& hello);
  void Handle(Session& session, Incoming& incoming);
  void AnswerAskers(Model& model);

  Sessions& sessions_;
  Executor& executor_;
  KeptPlaces kept_;
  trace::Counter& messages_in_ = trace::CounterNamed("control.messages_in");
  trace::Counter& breaks_ = trace::CounterNamed("control.streams_broken");
};

}  // namespace weightcast::control
