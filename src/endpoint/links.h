#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/poller.h"
#include "endpoint/connection.h"
#include "endpoint/paths.h"
#include "endpoint/transfers/progress.h"
#include "endpoint/transfers/registrations.h"
#include "endpoint/transfers/sockets.h"
#include "endpoint/transfers/timers.h"
#include "transport/transport.h"

namespace weightcast::endpoint {

/// An endpoint's transports, the links of its connections over them, and who has something for them: what
/// progress is made on. Belongs to the holder of progress, but for Import.
class Links final : public Work {
 public:
  using ConnectionState = std::shared_ptr<Connection::State>;
  struct Created {
    std::string name;
    std::unique_ptr<transport::Transport> transport;
  };

  /// `on_gone`: a link has closed, or a transport has let go of a region.
  Links(Registrations& regions, Timers& timers, std::function<void()> on_gone)
      : regions_(regions), timers_(timers), on_gone_(std::move(on_gone)) {}

  /// Once, before anything else. Best first; `poller` has the descriptors of all.
  Status Start(Sockets& sockets, Poller poller, std::vector<Created> transports);
  /// The transports go; what is left is of peers that are stopped.
  void DropTransports();

  /// Any thread. Import at a transport, unless they are gone: a connection's handle may outlive the endpoint.
  Result<transport::RemoteRegion> Import(transport::Transport& transport, transport::LinkId link,
                                         const RegionName& name, uint64_t length, std::string_view key);
  void Release(transport::LinkId link, transport::RemoteRegion region);

  /// For a new connection: those that have not taken all device memory say why not.
  [[nodiscard]] std::vector<NamedTransport> Allowed() const;
  transport::LinkId Add(transport::Transport* transport, ConnectionState connection);
  void Close(transport::LinkId link);
  void Drop(transport::LinkId link) { links_.erase(link); }
  [[nodiscard]] bool empty() const { return links_.empty(); }
  /// Who may still write to this side's memory: the peers of connections that have ended, not their links.
  [[nodiscard]] std::string Writers() const;
  /// Ends all transfers that use it.
  void EndUsing(const RegisteredMemory& registration);

  /// Begins a transfer. A visit makes no step afterwards: what the transport can do of it at once has ended
  /// when this returns.
  void Begin(Connection::State& connection, const TransferRef& transfer, bool visit);
  /// It has something for the transports.
  void WantPump(const ConnectionState& connection);
  [[nodiscard]] bool pumping() const { return !pumping_.empty(); }

  // Work.
  bool Step(bool sockets) override;
  bool Arm() override;
  void Disarm() override;
  [[nodiscard]] bool ArmingIsCostly() const override { return !links_.empty() && cheap_links_ == 0; }
  void Mask(bool on) override { sockets_->Change(poller_key_, on ? 0U : uint32_t{EPOLLIN}); }
  [[nodiscard]] std::optional<TimePoint> NextDeadline() const override { return timers_.next(); }

 private:
  struct Link {
    transport::Transport* transport = nullptr;
    ConnectionState connection;  ///< Held until LinkClosed.
  };

  bool PumpAll();
  /// The first of `events_`.
  void Dispatch(size_t count);
  template <typename OfLink>
  void Handle(const OfLink& event);
  void Handle(const transport::Deregistered& event);

  Registrations& regions_;
  Timers& timers_;
  const std::function<void()> on_gone_;
  Sockets* sockets_ = nullptr;  ///< From Start on.
  std::shared_mutex mutex_;     ///< Held by callers inside a transport, and to end them.
  std::vector<Created> transports_;
  Poller poller_;  ///< One call masks all transports.
  uint64_t poller_key_ = 0;
  std::array<transport::Event, 128> events_;
  std::unordered_map<transport::LinkId, Link> links_;
  uint32_t last_link_ = 0;
  size_t cheap_links_ = 0;  ///< Of transports that are cheap to arm.
  std::vector<ConnectionState> pumping_;
};

}  // namespace weightcast::endpoint
