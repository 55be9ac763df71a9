#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/poller.h"
#include "base/timer_fd.h"
#include "transport/shm/acceptor.h"
#include "transport/shm/context.h"
#include "transport/shm/link.h"
#include "transport/shm/region_fences.h"
#include "transport/transport.h"

namespace weightcast::transport::shm {

/// The contract over shared memory. Threads and promises: transport.h.
class ShmTransport final : public Transport {
 public:
  static Result<std::unique_ptr<Transport>> Create(const TransportOptions& options,
                                                   CrossCopies copies = CrossCopies::kEither,
                                                   Ptracer& ptracer = Ptracer::OfProcess());
  /// Closes every link; waits briefly for copies of peers that are under way.
  ~ShmTransport() override;

  [[nodiscard]] Limits LimitsOf(MemoryKind kind) const override;

  Result<std::string> Register(const RegionName& name, const DescribedMemory& memory, Access access) override;
  void Deregister(uint32_t region) override;
  Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length,
                              std::string_view key) override;
  void Release(LinkId link, RemoteRegion region) override;

  Result<std::string> OpenLink(LinkId link, Role role, Incarnation peer, std::string_view offer,
                               TimePoint deadline) override;
  Status Establish(LinkId link, std::string_view answer) override;
  void CloseLink(LinkId link) override;
  [[nodiscard]] std::string Describe(LinkId link) const override;

  Status OpenGrant(LinkId link, const GrantName& grant, GrantReach ranges) override;
  void Revoke(LinkId link, const GrantName& grant) override;

  size_t Post(LinkId link, uint32_t lane, std::span<const Op> ops) override;
  Progressed Progress(std::span<Event> out) override;
  size_t Reap(std::span<Event> out) override {
    posts_.bytes = kAtOnceBytes;  // Whoever visits makes no turn.
    return context_.events.Take(out);
  }

  [[nodiscard]] int fd() const override { return context_.poller.fd(); }
  bool Arm() override;
  void Disarm() override;

 private:
  ShmTransport(const TransportOptions& options, CrossCopies copies, Ptracer& ptracer, Poller poller,
               SharedPages fence, WakeFd wake, TimerFd timer, Acceptor acceptor);
  [[nodiscard]] Link* Find(LinkId link) const;
  void WakeSleeper();
  void Poll();
  void Dispatch(uint64_t key, TimePoint now);
  bool Turn();
  bool TakeChanges();
  bool RemoveClosed();

  const pid_t process_;
  const Settings settings_;
  Context context_;
  WakeFd wake_;
  TimerFd timer_;
  Acceptor acceptor_;
  const std::string boot_id_;

  std::unordered_map<uint32_t, std::unique_ptr<Link>> links_;
  std::vector<Link*> order_;  ///< All links, for turns.
  size_t first_ = 0;          ///< Whose turn comes first.
  RegionFences region_fences_{context_};
  Budget posts_{.bytes = kAtOnceBytes};  ///< Of what is posted until the next turn.
  uint32_t turns_ = 0;
  bool poll_now_ = true;
  TimePoint polled_{};
  std::atomic<bool> asleep_{false};
};

}  // namespace weightcast::transport::shm
