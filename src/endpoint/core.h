#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/poller.h"
#include "endpoint/connection.h"
#include "endpoint/connections.h"
#include "endpoint/device_memory.h"
#include "endpoint/handshake_listener.h"
#include "endpoint/handshakes.h"
#include "endpoint/lingering.h"
#include "endpoint/progress.h"
#include "endpoint/regions.h"
#include "endpoint/sockets.h"
#include "endpoint/timers.h"
#include "transport/transport.h"
#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// What an endpoint and all its handles share. Everything that is not said to be for any thread belongs to
/// the holder of progress (docs/threads.md).
class Core final : public Work, public std::enable_shared_from_this<Core> {
 public:
  using Factories = std::span<const transport::TransportFactory>;
  using ConnectionState = std::shared_ptr<Connection::State>;

  static Result<std::shared_ptr<Core>> Create(EndpointOptions options, Factories factories);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core() override;

  // --- Any thread -----------------------------------------------------------------------------
  [[nodiscard]] const Identity& self() const { return options_.self; }
  [[nodiscard]] const Settings& settings() const { return options_.settings; }
  [[nodiscard]] const std::vector<std::string>& addresses() const { return listener_->addresses(); }
  [[nodiscard]] Progress& progress() { return *progress_; }
  [[nodiscard]] Regions& regions() { return regions_; }
  [[nodiscard]] DeviceMemory& device_memory() { return device_memory_; }
  [[nodiscard]] TransferPool& transfers() { return transfers_; }
  /// kInternal after fork() in the child, kCancelled after Shutdown.
  [[nodiscard]] Status Usable() const;
  [[nodiscard]] bool forked() const;
  [[nodiscard]] Connections& connections() { return *connections_; }
  [[nodiscard]] Connector& connector() { return handshakes_->connector(); }
  /// Import at a transport, unless they are gone: a connection's handle may outlive the endpoint.
  Result<transport::RemoteRegion> ImportAt(transport::Transport& transport, transport::LinkId link,
                                           const RegionName& name, uint64_t length, std::string_view key);
  void ReleaseImport(transport::LinkId link, transport::RemoteRegion region);
  /// Closes everything, waits at most a lease until all is fenced, ends the thread.
  void Shutdown();

  // --- Holder of progress -----------------------------------------------------------------------
  [[nodiscard]] Timers& timers() { return timers_; }
  [[nodiscard]] Sockets& sockets() { return *sockets_; }
  /// For a new connection: those that have not taken all device memory say why not.
  [[nodiscard]] std::vector<NamedTransport> transports() const;
  [[nodiscard]] const std::string& boot_id() const { return boot_id_; }
  [[nodiscard]] LingeringChannels& lingering() { return *lingering_; }
  transport::LinkId AddLink(transport::Transport* transport, ConnectionState connection);
  void CloseLink(transport::LinkId link);
  void DropLink(transport::LinkId link) { links_.erase(link); }
  /// It has something for the transports.
  void WantPump(const ConnectionState& connection);
  [[nodiscard]] bool pumping() const { return !pumping_.empty(); }
  /// Takes what the transport has done already, moving nothing.
  void Reap(transport::Transport& transport);
  // Work.
  bool Step(bool sockets) override;
  bool Arm() override;
  void Disarm() override;
  [[nodiscard]] bool ArmingIsCostly() const override { return !links_.empty() && cheap_links_ == 0; }
  void Mask(bool on) override { sockets_->Change(transports_key_, on ? 0U : uint32_t{EPOLLIN}); }
  [[nodiscard]] std::optional<TimePoint> NextDeadline() const override { return timers_.next(); }

 private:
  struct Link {
    transport::Transport* transport = nullptr;
    ConnectionState connection;  ///< Held until LinkClosed.
  };

  explicit Core(EndpointOptions options);
  Status Init(Factories factories);
  Status CheckOptions() const;
  Status CreateTransports(Factories factories);
  Status AddTransport(const transport::TransportFactory& factory);
  void OnProven(Proven proven);
  bool PumpAll();
  void Dispatch(const transport::Event& event);
  template <typename OfLink>
  void Handle(const OfLink& event);
  void Handle(const transport::Deregistered& event);
  void CloseAll();
  void CheckFenced();
  void DropTransports();

  EndpointOptions options_;
  std::string peers_key_;  ///< Of options_.token, which is cleared.
  const std::string boot_id_;
  const uint32_t forks_;  ///< How often the process had been forked when this was made.
  std::atomic<bool> closed_{false};
  TransferPool transfers_;  ///< Outlives all that may still hold one.
  DeviceMemory device_memory_;
  Regions regions_;

  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Sockets> sockets_;
  Timers timers_;
  std::shared_mutex transports_mutex_;  ///< Held by callers inside a transport, and to end them.
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<NamedTransport> named_;
  Poller transport_poller_;  ///< All transports' descriptors: one call masks them.
  uint64_t transports_key_ = 0;
  std::array<transport::Event, 128> events_;
  std::unordered_map<transport::LinkId, Link> links_;
  uint32_t last_link_ = 0;
  size_t cheap_links_ = 0;  ///< Of transports that do not arm dearly.
  std::vector<ConnectionState> pumping_;
  std::unique_ptr<HandshakeListener> listener_;
  std::unique_ptr<LingeringChannels> lingering_;
  std::unique_ptr<Connections> connections_;
  std::unique_ptr<Handshakes> handshakes_;
  Flag fenced_;  ///< 1: closed, and nothing can land any more.
};

}  // namespace weightcast::endpoint
