#pragma once

#include <functional>
#include <memory>

#include "control/absence.h"
#include "protocol/messages.h"
#include "protocol/observer_messages.h"
#include "weightcast/clock.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// How a worker stands with its controller.
enum class LinkState {
  kConnected,  ///< Welcomed, or back after a break.
  kBroken,     ///< No controller at present; the client keeps trying. The status says why.
  kEnded,      ///< For good; the status says why. The last callback of a client.
};

struct ClientOptions {
  /// Used: controller, job, token_file, lease, join_timeout.
  Settings settings;
  /// Waits for the first controller without limit, not for join_timeout.
  bool patient = false;
  /// Kept by the client; null: nobody looks.
  std::shared_ptr<Absence> absence = nullptr;
  /// Its job is filled in by the client.
  protocol::Hello hello;
  /// Every message but heartbeats. Called from a thread of the client's, one at a time; may Send. Heartbeats
  /// go on meanwhile, but the destructor waits for it.
  std::function<void(protocol::ControllerMessage)> on_message;
  /// Changes of the link; same thread.
  std::function<void(LinkState, const Status&)> on_state;
};

/// A worker's session with the controller: one thread that sends heartbeats and never runs the caller's code,
/// one that reads large messages and calls back. Within one term, and as long as no break
/// outlasts the lease, no message is lost, repeated or reordered: both sides number them and say again what a
/// broken stream has swallowed.
///
/// Otherwise a session begins with each `Welcome`: the controller then knows of this worker only its Hello,
/// so the worker registers (and publishes) again. After a Welcome that is not the first, messages sent before
/// it are dropped, and so is all that is sent until the next Register or Suspended, or EngineCommandResult of
/// order 0.
///
/// A client that was welcomed once looks for a controller without limit. Where its token is refused, the
/// token file is read again. After a lease without a controller no session can go on, so messages are dropped
/// until the next one.
///
/// The client ends (kEnded): with the reason of `Refused`; kPermission for a wrong token, at once, but for a
/// client that was welcomed before only after join_timeout of nothing else: the process that has the
/// port meanwhile may not be its controller; kTimedOut, naming the address, when no controller was reached
/// for join_timeout at first; kExhausted when the queue overflows; kCancelled after Leave.
class ControlClient {
 public:
  /// Starts to attach; returns at once. Errors: kInvalidArgument or kPermission for address and token.
  static Result<std::unique_ptr<ControlClient>> Start(ClientOptions options);
  /// Ends without a Leave if need be, within a second; no callback runs afterwards. Not from a callback.
  virtual ~ControlClient() = default;

  /// What the next Hello says of this worker: an inference rank ...
  virtual void SetServed(protocol::EngineState state, Version served, Version newest) = 0;
  /// ... or a trainer.
  virtual void SetRun(const protocol::Run& run) = 0;
  /// Queues a message; never blocks, from any thread. Ignored once ended.
  virtual void Send(protocol::WorkerMessage message) = 0;
  /// Says Leave after all that was sent before, waits until it has gone out or `deadline`, and ends.
  /// Not from a callback.
  virtual void Leave(TimePoint deadline) = 0;

  [[nodiscard]] virtual LinkState state() const = 0;  ///< kBroken until first welcomed.
  [[nodiscard]] virtual Status status() const = 0;    ///< Why broken or ended; ok while connected.
};

/// What the controller shows; no worker needed. Uses the settings controller and token_file.
class ViewStream {
 public:
  static Result<std::unique_ptr<ViewStream>> Open(const Settings& settings);
  virtual ~ViewStream() = default;
  /// The next view: one at once, then one at each change and at least every second. Errors: kTimedOut,
  /// kUnavailable (naming the address), kPermission.
  virtual Result<protocol::ClusterView> Next(TimePoint deadline) = 0;
  /// Messages from this place on; waits for some, at most a second. From the first call on there are no
  /// views. Errors as above; after kTimedOut `from` must stay.
  virtual Result<protocol::Trace> Trace(uint64_t from, TimePoint deadline) = 0;
  /// What these updates took. As with Trace there are no views from the first call on, and after kTimedOut
  /// `ask` must stay.
  virtual Result<protocol::Updates> Updates(const protocol::AskUpdates& ask, TimePoint deadline) = 0;
};

/// JSON of what the updates that are asked for took (docs/explain.md). Errors as of a view. `interrupted`:
/// looked at about ten times a second; true ends the wait with kCancelled.
Result<std::string> GetUpdates(const Settings& settings, const protocol::AskUpdates& ask, TimePoint deadline,
                               const std::function<bool()>& interrupted = {});

/// One view.
Result<protocol::ClusterView> GetView(const Settings& settings, TimePoint deadline);

}  // namespace weightcast::control
