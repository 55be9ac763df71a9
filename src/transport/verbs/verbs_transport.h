#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/poller.h"
#include "base/timer_fd.h"
#include "transport/event_queue.h"
#include "transport/lane_transport.h"
#include "transport/verbs/link.h"
#include "transport/verbs/nic.h"
#include "transport/verbs/registry.h"
#include "weightcast/settings.h"

namespace weightcast::transport::verbs {

/// InfiniBand and RoCE v2: docs/verbs.md. Memory is registered on the caller's thread, where device memory
/// may block in the driver; commands about them, and all else, belong to the holder of progress.
class VerbsTransport final : public LaneTransport<VerbsTransport> {
 public:
  static constexpr std::string_view kName = "verbs";
  static Result<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                   std::shared_ptr<Ibverbs> api);
  ~VerbsTransport() override;

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
  [[nodiscard]] bool ArmingIsCostly() const override { return true; }

 private:
  friend class LaneTransport<VerbsTransport>;
  /// A closed link whose shutdown message is still on its way.
  struct ClosingLink {
    std::unique_ptr<Link> link;
    TimePoint deadline;
  };

  VerbsTransport(const TransportOptions& options, Poller poller, TimerFd timer,
                 std::vector<std::unique_ptr<Nic>> nics);
  Status Watch();
  using LaneTransport::Run;
  void Run(LocalRegion& region) { regions_.Add(std::move(region)); }
  void Run(const RegionOut& out);
  void OnRegionEnded(LocalRegion& region);
  void EndRegion(uint32_t id);
  void EndHeldRegions();
  void PollNics();
  void LookAtNics();
  void ContinueLinks();
  void StepTimers();
  void EndClosing(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;

  Settings settings_;
  Poller poller_;
  TimerFd timer_;
  std::vector<std::unique_ptr<Nic>> nics_;
  Registry registry_;
  EventQueue events_;
  Regions regions_;
  bool moved_ = false;
  TimePoint next_step_ = TimePoint::max();
  std::vector<LinkId> touched_;
  std::vector<LinkId> touched_now_;
  std::vector<Registry::Command> commands_;
  /// Deregistered, but a dead NIC still has them: until no queue pair there is left.
  std::vector<uint32_t> held_regions_;
  std::map<LinkId, std::unique_ptr<Link>> links_;
  std::vector<ClosingLink> closing_links_;
  /// Devices' events are looked at after each sleep, and every so many turns of one who does not sleep.
  uint32_t turns_ = 0;
  static constexpr uint32_t kTurns = 1024;
  /// Batches of completions taken from one NIC in one turn.
  static constexpr uint32_t kPolls = 16;
};

}  // namespace weightcast::transport::verbs
