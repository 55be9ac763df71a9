#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/poller.h"
#include "base/timer_fd.h"
#include "transport/event_queue.h"
#include "transport/lane_transport.h"
#include "transport/tcp/lane_acceptor.h"
#include "transport/tcp/link.h"
#include "transport/tcp/local_region.h"
#include "transport/tcp/registry.h"
#include "transport/tcp/staging.h"
#include "weightcast/settings.h"

namespace weightcast::transport::tcp {

/// Sockets as a transport: any two hosts, host memory, and device memory by staging. docs/wire.md, "tcp", has
/// what crosses them.
///
/// Register, Deregister and Import leave commands in the Registry for the thread that drives progress;
/// everything else here belongs to that thread.
class TcpTransport final : public LaneTransport<TcpTransport>, private LaneAcceptor::Host {
 public:
  static constexpr std::string_view kName = "tcp";
  static Result<std::unique_ptr<Transport>> Create(const TransportOptions& options);
  ~TcpTransport() override;

  [[nodiscard]] Limits LimitsOf(MemoryKind kind) const override;

  Result<std::string> Register(const RegionName& name, const DescribedMemory& memory, Access access) override;

  Result<std::string> OpenLink(LinkId link, Role role, Incarnation peer, std::string_view offer,
                               TimePoint deadline) override;
  Status Establish(LinkId link, std::string_view answer) override;
  void CloseLink(LinkId link) override;

  Progressed Progress(std::span<Event> out) override;

  [[nodiscard]] int fd() const override { return poller_.fd(); }
  bool Arm() override;
  void Disarm() override;

 private:
  friend class LaneTransport<TcpTransport>;
  TcpTransport(const TransportOptions& options, Poller poller, TimerFd timer);

  const Cookie* OnHello(const Greeting& hello) override;
  void OnStart(const Greeting& start, UniqueFd socket) override;

  Link* FindByCookie(const Cookie& cookie) const;
  [[nodiscard]] uint16_t LanesToOffer() const;
  using LaneTransport::Run;
  void Run(LocalRegion& region);
  void OnRegionEnded(uint32_t id);
  Result<Staging*> MakeStaging();
  void EndLink(LinkId link);
  bool ArmStaging();
  void Poll();
  void PollSockets();
  bool LookAtLastLane();
  void OnReady(uint64_t key);
  void StepTimers();
  [[nodiscard]] TimePoint NextStep() const;

  Settings settings_;
  std::string boot_id_;
  Poller poller_;
  TimerFd timer_;
  std::mutex staging_mutex_;               ///< Guards the next.
  std::unique_ptr<Staging> staging_made_;  ///< With the first device region.
  Staging* staging_ = nullptr;             ///< The same, once its first region is known here.
  Registry registry_;
  LaneAcceptor acceptor_;
  Regions regions_;
  EventQueue events_;
  uint32_t wanting_ = 0;  ///< See Shared.
  bool moved_ = false;    ///< See Shared.
  std::map<LinkId, std::unique_ptr<Link>> links_;
  /// Where something was received last: one who spins looks there, and at all others every kLooks times.
  LinkId last_link_{};
  uint32_t last_lane_ = 0;
  uint32_t looks_ = 0;
  static constexpr uint32_t kLooks = 4;
  std::vector<Registry::Command> commands_;
  TimePoint next_step_ = TimePoint::max();
};

}  // namespace weightcast::transport::tcp
