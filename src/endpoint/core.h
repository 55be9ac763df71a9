#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "endpoint/connections.h"
#include "endpoint/device_memory.h"
#include "endpoint/handshake_listener.h"
#include "endpoint/handshakes.h"
#include "endpoint/lingering.h"
#include "endpoint/links.h"
#include "endpoint/transfers/progress.h"
#include "endpoint/transfers/registrations.h"
#include "endpoint/transfers/sockets.h"
#include "endpoint/transfers/timers.h"
#include "endpoint/transfers/user_callbacks.h"
#include "transport/transport.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// What an endpoint and all its handles share. Everything that is not said to be for any thread belongs to
/// the holder of progress (docs/threads.md).
class Core final : public TransferOwner, public std::enable_shared_from_this<Core> {
 public:
  static Result<std::shared_ptr<Core>> Create(EndpointOptions options,
                                              std::span<const transport::TransportFactory> factories);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // --- Any thread -----------------------------------------------------------------------------
  [[nodiscard]] const Identity& self() const { return options_.self; }
  [[nodiscard]] const Settings& settings() const { return options_.settings; }
  [[nodiscard]] const std::string& boot_id() const { return boot_id_; }
  /// kInternal after fork() in the child, kCancelled after Shutdown.
  [[nodiscard]] Status Usable() const;
  [[nodiscard]] bool forked() const;
  /// Closes everything, waits at most a lease until all is fenced, ends the thread.
  void Shutdown();
  /// The endpoint of a transfer.
  static Core& Of(const Transfer::State& transfer) { return static_cast<Core&>(*transfer.owner); }

  // --- What it has; each says for which threads ---------------------------------------------------
  [[nodiscard]] Progress& progress() { return *progress_; }
  [[nodiscard]] UserCallbacks& callbacks() { return *callbacks_; }
  [[nodiscard]] TransferPool& transfers() override { return transfers_; }
  [[nodiscard]] DeviceMemory& device_memory() { return device_memory_; }
  [[nodiscard]] Registrations& regions() { return regions_; }
  [[nodiscard]] const HandshakeListener& listener() { return *listener_; }
  [[nodiscard]] Connections& connections() { return *connections_; }
  [[nodiscard]] Connector& connector() { return handshakes_->connector(); }
  [[nodiscard]] Links& links() { return links_; }
  [[nodiscard]] LingeringChannels& lingering() { return *lingering_; }

 private:
  explicit Core(EndpointOptions options);
  void Begin(const TransferRef& transfer) override;
  [[nodiscard]] Context context() { return {options_, *progress_, *callbacks_, *sockets_, timers_}; }
  Status Init(std::span<const transport::TransportFactory> factories);
  void OnProven(Proven proven);
  void CheckFenced();

  EndpointOptions options_;
  std::string peers_key_;  ///< Of options_.token, which is cleared.
  const std::string boot_id_;
  const uint32_t forks_;  ///< How often the process had been forked when this was made.
  std::atomic<bool> closed_{false};
  TransferPool transfers_;  ///< Outlives all that may still hold one.
  DeviceMemory device_memory_;
  Registrations regions_;

  std::unique_ptr<Progress> progress_;
  std::unique_ptr<UserCallbacks> callbacks_;
  std::unique_ptr<Sockets> sockets_;
  Timers timers_;
  Links links_;
  std::unique_ptr<HandshakeListener> listener_;
  std::unique_ptr<LingeringChannels> lingering_;
  std::unique_ptr<Connections> connections_;
  std::unique_ptr<Handshakes> handshakes_;
  Flag fenced_;  ///< 1: closed, and nothing can land any more.
};

}  // namespace weightcast::endpoint
