#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/client.h"
#include "http/exporter.h"
#include "protocol/messages.h"
#include "trace/metrics.h"
#include "weightcast/endpoint.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"
#include "worker/loop.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// What trainers and inference ranks have in common: settings, one endpoint, one client of the controller,
/// one event-loop thread (`wc-worker`). Everything that comes from outside arrives as a task of that thread.
class Session {
 public:
  /// All are called in the loop, after Begin.
  struct Handlers {
    std::function<void(protocol::ControllerMessage)> on_message;
    std::function<void(Status)> on_ended;  ///< Once, as AsOutcome has it; nothing comes after it.
    std::function<void(const Identity&)> on_connected;
    std::function<void(const Identity&, const Status&)> on_disconnected;
  };

  /// Opens the endpoint and begins to attach to the controller; returns at once. Errors: settings, token,
  /// rank.
  static Result<std::unique_ptr<Session>> Open(const WorkerOptions& options, protocol::Role role,
                                               Handlers handlers);
  /// Close must have been called.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Attaches to the controller; blocks until a Welcome has been taken. Errors: why the session ended.
  /// Bounded by join_timeout, but for a patient worker.
  Status Begin();

  [[nodiscard]] Loop& loop() { return loop_; }
  [[nodiscard]] Endpoint& endpoint() { return *endpoint_; }
  [[nodiscard]] control::ControlClient& client() { return *client_; }
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] const protocol::WorkerName& name() const { return name_; }
  [[nodiscard]] std::string text() const { return protocol::ToString(name_); }  ///< "trainer 3"
  [[nodiscard]] const std::string& model() const { return model_; }
  /// The peer that a member of a plan must prove to be.
  [[nodiscard]] Identity IdentityOf(const protocol::Member& member) const;
  /// What this worker must have to connect here.
  [[nodiscard]] std::string KeyOf(const Identity& initiator) const;
  [[nodiscard]] std::vector<std::string> ConnectionMap() const;
  /// What the user's calls wait with.
  [[nodiscard]] const Patience& patience() const { return patience_; }
  /// What the controller shows. Asks again while it is away: until controller_timeout (not if patient), the
  /// end of this session or an interruption. Any thread but the loop's.
  Result<protocol::ClusterView> View();
  /// Who this worker is, for metrics.
  [[nodiscard]] trace::Labels labels() const;

  /// Says Leave, ends the loop. Tasks that had not run are dropped.
  void Leave();
  /// Ends the endpoint, bounded by the lease. After Leave, when nobody uses it any more (but ConnectionMap).
  void CloseEndpoint();

 private:
  Session(const WorkerOptions& options, protocol::Role role, Settings settings, Handlers handlers);
  Status OpenEndpoint();
  Status OpenClient();
  void OnMessage(protocol::ControllerMessage message);
  void SetOutcome(const Status& status);
  void PostIfBegun(std::function<void()> task);
  Result<protocol::ClusterView> ViewOnce(TimePoint deadline);
  [[nodiscard]] Status Admit(const Identity& peer) const;

  const protocol::WorkerName name_;
  const std::string model_;
  const std::string secret_;        ///< Proves the incarnation.
  const std::string commit_group_;  ///< Which ranks are whose; empty: there is none.
  const uint32_t world_size_;
  const Settings settings_;
  const Handlers handlers_;

  bool begun_ = false;  ///< The loop's.
  Interrupted interrupted_;
  const std::shared_ptr<control::Absence> absence_;
  const Patience patience_;
  struct Told {
    std::optional<Status> outcome;
    std::optional<Status> end;  ///< The controller's client has given up, because of it.
  };
  Shared<Told> told_;

  Loop loop_;
  mutable std::mutex map_mutex_;  ///< Keeps the endpoint while its map is being made.
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<control::ControlClient> client_;
  std::shared_ptr<http::Exporter> exporter_;
};

}  // namespace weightcast::worker
