#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/shm/channel.h"
#include "transport/shm/context.h"
#include "transport/shm/cross_copy.h"
#include "transport/shm/departed.h"
#include "transport/shm/engines.h"
#include "transport/shm/inbox.h"
#include "transport/shm/messages.h"
#include "transport/shm/outbox.h"
#include "transport/shm/receiver.h"
#include "transport/shm/sender.h"
#include "transport/shm/source_maps.h"
#include "transport/shm/source_offers.h"
#include "transport/shm/staging.h"
#include "transport/types.h"
#include "weightcast/clock.h"

namespace weightcast::transport::shm {

/// One link to one peer process, from the first blob to the last proof that the peer is out. Stays at its
/// address. link.cc: its life and its fences; link_setup.cc: greeting and trial; link_regions.cc:
/// what is asked for later over the socket; link_devices.cc: device memory.
class Link {
 public:
  /// What may still touch this side's memory when it was made: copies by the peer's processor, copies by this
  /// side's own devices, and copies by the peer's devices into open memory.
  struct Fence {
    FenceWait busy;
    EngineFence engines;
    std::optional<DeviceFenceWait> pushes;  ///< Empty: none may touch it.
  };
  enum class State : uint8_t {
    kOpening,  ///< Blobs, greeting, trial.
    kReady,
    kHungUp,   ///< The socket is closed; soon it shows whether the process has ended.
    kDown,     ///< LinkDown has been told; CloseLink is awaited.
    kClosing,  ///< LinkClosed follows when the peer is out for certain.
  };

  /// kExhausted when memory or descriptors do not suffice.
  static Result<std::unique_ptr<Link>> Create(Context& context, LinkId id, Incarnation peer,
                                              TimePoint deadline);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] LinkId id() const { return id_; }
  [[nodiscard]] State state() const { return state_; }
  /// What the peer must present.
  [[nodiscard]] const Cookie& cookie() const { return cookie_; }
  [[nodiscard]] std::string Describe() const;

  // --- Setting up ---
  /// Initiator: connects and greets. Failures come as LinkDown.
  void Connect(const Invitation& answer);
  /// Responder: the peer has connected and greeted with our cookie, which came in `offer`'s answer.
  void Adopt(Channel channel, const Channel::Incoming& hello);
  void set_peer_cookie(const Cookie& cookie) { peer_cookie_ = cookie; }
  [[nodiscard]] bool awaits_guest() const {
    return state_ == State::kOpening && !channel_.valid() && peer_cookie_ != Cookie{};
  }

  // --- What the poller and the clock tell ---
  void OnChannel();
  void OnProcess();
  void OnTime(TimePoint now);
  /// When OnTime has something to do.
  [[nodiscard]] std::optional<TimePoint> due() const;

  // --- Bytes ---
  size_t Post(std::span<const Op> ops, Budget& budget);
  /// Handles what came, moves what waits. True if there was anything to do.
  bool Turn(Budget& budget);
  /// Asks the peer to ring for what we wait for; `fences`: also when its busy word changes.
  void Arm(bool fences);
  void Disarm();
  [[nodiscard]] bool waits_for_device() const { return sender_ && sender_->waits_for_device(); }

  // --- Regions of the peer ---
  void Import(PeerRegion& region);

  // --- Fences ---
  Status OpenGrant(const GrantName& grant, GrantReach ranges);
  void Revoke(const GrantName& grant);
  /// Of what a grant allows, to which nobody pushes.
  [[nodiscard]] Fence MakeFence() const { return {inbox_.Fence(), engines_.Fence(), std::nullopt}; }
  /// Of a region that is deregistered.
  [[nodiscard]] Fence MakeFence(uint32_t region) const;
  [[nodiscard]] bool Over(const Fence& fence) const {
    return (gone_ || fence.busy.Over(inbox_.shared().busy)) && engines_.Over(fence.engines) &&
           (!fence.pushes || PushesOver(*fence.pushes));
  }
  /// Tells the revokes that are over. True if there was one.
  bool SettleRevokes();
  [[nodiscard]] bool has_revokes() const { return !revokes_.empty(); }
  void Close();
  [[nodiscard]] bool closed() const {
    return state_ == State::kClosing && Over(*closing_) && sources_.empty() && (!sender_ || sender_->idle());
  }

  // --- Device memory ---
  /// Goes on with copies and mappings, in every state. True if there was anything.
  bool StepDevices();
  /// Has the peer unmap a region that is deregistered here.
  void DropSource(uint32_t region) { offers_.Drop(region); }
  /// Whether the peer may have it mapped.
  [[nodiscard]] bool SourceHeld(uint32_t region) const { return offers_.Holds(region); }
  /// Of a closed link: the peer, where it has yet to unmap regions of this side.
  std::optional<DepartedPeer> Depart();

 private:
  struct PendingRevoke {
    GrantName grant;
    Fence fence;
    bool frees_slot = false;
  };

  Link(Context& context, LinkId id, Incarnation peer, TimePoint deadline, OwnInbox inbox);

  void TryConnect(TimePoint now);
  Status Watch(Channel channel);
  void UpdateInterest();
  Status Greet();
  Status OnMessage(Channel::Incoming& message);
  Status OnHello(const Channel::Incoming& message);
  Status IdentifyProcess();
  Status OnTrial(const Trial& trial);
  Status OnVerdict(const Verdict& verdict);
  void BecomeReady();

  void AskForRegions();
  Status OnWantRegion(const WantRegion& request);
  Status OnRegion(const RegionReply& reply, std::span<const UniqueFd> fds);
  std::shared_ptr<PeerMapping> MapRegion(const PeerRegion& region, const RegionReply& reply,
                                         std::span<const UniqueFd> fds);
  Status OnRing(const RingReply& reply, std::span<const UniqueFd> fds);
  Status SendRing();
  void SettleRing();
  /// No mapping: copy, or the ring.
  void TakeOtherPath(PeerRegion& region);
  void WarnOfRing();

  Status OnSourceMessage(MessageKind kind, Channel::Incoming message);
  Status OnStageMessage(MessageKind kind, const Channel::Incoming& message);
  /// The socket is needed until neither side has the other's device memory mapped.
  [[nodiscard]] bool channel_needed() const { return !offers_.empty() || !sources_.empty(); }

  /// The peer's process has ended.
  void Gone();
  [[nodiscard]] bool PushesOver(const DeviceFenceWait& fence) const {
    return fence.Over(inbox_.shared().device_ended) || (gone_ && !pushes_until_);
  }

  [[nodiscard]] bool over() const { return state_ == State::kDown || state_ == State::kClosing; }
  void HangUp();
  void CloseChannel();
  void Down(const Status& reason);
  [[nodiscard]] std::string PeerName() const;

  Context* context_;
  LinkId id_;
  Incarnation peer_;
  TimePoint deadline_;
  State state_ = State::kOpening;

  OwnInbox inbox_;
  Channel channel_;
  UniqueFd pidfd_;
  int pid_ = 0;
  Ptracer::Right tracer_;  ///< The peer copies to and from here.
  std::optional<Outbox> outbox_;
  Engines engines_;
  SourceOffers offers_;
  SourceMaps sources_;
  bool all_dropped_told_ = false;
  Paths paths_;
  std::optional<Staging> staging_;
  std::optional<Sender> sender_;
  std::optional<Receiver> receiver_;

  Cookie cookie_;
  Cookie peer_cookie_{};
  std::string peer_listener_;  ///< Set: connecting.
  TimePoint retry_at_{};
  TimePoint flush_at_{};  ///< When what waits for the socket is tried again.
  std::unique_ptr<TrialCell> cell_;
  bool verdict_sent_ = false;
  bool verdict_seen_ = false;

  std::map<RegionId, std::weak_ptr<PeerMapping>> mappings_;
  std::map<RegionId, std::vector<RemoteRegion>> wanted_;  ///< Imports that wait for a descriptor.
  std::deque<RegionId> unasked_;                          ///< Of these, what is yet to be asked for.
  size_t asking_ = 0;                                     ///< Requests without a reply.
  bool ring_sent_ = false;

  std::vector<PendingRevoke> revokes_;
  std::optional<Fence> closing_;
  bool bye_seen_ = false;
  bool gone_ = false;                      ///< Proven: the peer process runs no more.
  std::optional<TimePoint> pushes_until_;  ///< So long the devices of a dead peer may go on.
  bool armed_ = false;
};

}  // namespace weightcast::transport::shm
