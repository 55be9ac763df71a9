#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/backoff.h"
#include "transport/verbs/control.h"
#include "transport/verbs/lane.h"

namespace weightcast::transport::verbs {

/// What a link knows from its beginning.
struct LinkTerms {
  LinkId id{};
  Role role = Role::kInitiator;
  TimePoint deadline;  ///< To become ready.
  uint32_t lanes = 0;  ///< Wanted; 0: by the number of NICs and peers.
};

/// One peer: lanes over queue pairs on rails, the grants on both sides, fences. docs/verbs.md.
///
/// Its queue pairs have numbers: first one control queue pair for each rail, then the lanes, rail by rail in
/// turn.
class Link final : private Lane::Host, private Control::Host {
 public:
  using Nics = std::span<const std::unique_ptr<Nic>>;
  Link(const Shared& shared, Nics nics, const LinkTerms& terms);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() override;

  // --- Opening
  Result<std::string> MakeOffer();
  Result<std::string> MakeAnswer(std::string_view offer);
  Status Establish(std::string_view answer);
  [[nodiscard]] const LinkTerms& terms() const { return terms_; }
  [[nodiscard]] bool down() const { return state_ == State::kDown; }
  [[nodiscard]] std::string Describe() const;

  // --- Ending
  /// Completes everything and destroys the data queue pairs. What is left sends its shutdown message: until
  /// `gone`.
  void Close();
  /// After Close: the shutdown message has been delivered, or cannot be.
  [[nodiscard]] bool gone() const {
    return control_ == nullptr || peer_gone_ || control_->lost() || control_->delivered();
  }
  /// Ends what was found broken: queue pairs are destroyed here, never inside a completion.
  void EndBroken();

  // --- Traffic
  size_t Post(uint32_t lane, std::span<const Op> ops);
  /// Goes on with what was touched.
  void Continue();
  [[nodiscard]] PeerRegions& imports() { return imports_; }

  // --- Grants and fences
  Status OpenGrant(const GrantName& grant, const GrantReach& /*ranges*/);
  void Revoke(const GrantName& grant);
  /// The peer may write to it no more. It is used until that is certain.
  void Forget(LocalRegion& region);

  // --- Time and devices
  void Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;
  /// Its port went down or came up, or it died.
  void OnNicChanged(const Nic& nic);

 private:
  enum class State : uint8_t {
    kNew,       ///< Initiator: offered.
    kProbing,   ///< Initiator: established, probes are out.
    kStarting,  ///< Initiator: Start is out. Responder: waits for it.
    kReady,
    kDown,
  };
  struct Rail {
    uint8_t nic = 0;
    uint8_t peer_nic = 0;
    Address peer;
    Address own;  ///< As the peer knows it.
  };
  /// Of one rail, control first.
  using Queues = std::vector<std::unique_ptr<Queue>>;
  /// Two NICs that reach each other: an index in the offer, and one of ours.
  struct NicPair {
    size_t offered = 0;
    size_t nic = 0;
  };
  enum class Stage : uint8_t {
    kMade,     ///< Not connected yet.
    kProbing,  ///< Connected; initiator: our probe is out; responder: it has to come.
    kUp,
    kEnding,   ///< Ours is destroyed; the peer's may not be.
    kOver,     ///< Both are.
    kOffered,  ///< Initiator: the next generation is offered.
  };
  /// One queue pair's lives, one after another.
  struct Recovery {
    uint32_t rail = 0;
    uint32_t number = 1;
    Stage stage = Stage::kMade;
    bool peer_over = false;
    Backoff backoff{};
    std::unique_ptr<Queue> waiting{};  ///< kOffered: made, not connected.
  };
  /// At the target: the peer has been told, and has not answered.
  struct Fence {
    uint64_t number = 0;
    GrantName grant;                ///< Or
    LocalRegion* region = nullptr;  ///< one of these.
    TimePoint deadline;
  };
  /// At the writer: answered once this has completed.
  struct Barrier {
    uint64_t fence = 0;
    struct Mark {
      uint32_t generation = 0;
      uint32_t posted = 0;
    };
    std::vector<Mark> lanes;
  };

  // Lane::Host and Control::Host
  const ImportedRegion* FindImport(RemoteRegion region) const override { return imports_.Find(region); }
  void AskFor(const GrantName& grant) override;
  void Touch() override;
  void OnControl(const ControlMessage& message) override;
  void OnQueueProbed(uint32_t queue, const Probe& probe) override;
  void OnQueueProven(uint32_t queue) override;
  void OnQueueBroken(uint32_t queue, Status reason) override;
  void OnDeviceLost(Status reason) override { GoDown(std::move(reason)); }

  // Opening: link_open.cc
  [[nodiscard]] uint32_t NicsUp() const;
  /// How many of a rail on this NIC: fewer as peers grow.
  [[nodiscard]] uint32_t DataQueuesOf(const Nic& nic) const;
  Status MakeLanes(const std::vector<uint32_t>& counts);
  [[nodiscard]] std::string WhyNoneIsUp() const;
  [[nodiscard]] std::string ReasonNoneFits(const Offer& offer) const;
  [[nodiscard]] std::vector<NicPair> PairNics(const Offer& offer) const;
  [[nodiscard]] Result<Queues> MakeRail(Nic& nic, const Address& peer,
                                        std::span<const QueueName> names) const;
  /// Which of its rail's queue pairs it is: 0 for control.
  [[nodiscard]] uint32_t PlaceOf(uint32_t queue) const;
  /// A lane and a control queue pair are up.
  [[nodiscard]] bool Works() const;
  void CheckProbes();
  /// What is still silent when its time is over must not take with it what works: it is made anew later.
  void EndSilent(TimePoint now);
  void OnStart();
  void OnStarted();
  void MarkReady();

  // Queue pairs' lives: link_recovery.cc
  [[nodiscard]] uint32_t rails() const { return static_cast<uint32_t>(rails_.size()); }
  [[nodiscard]] Nic& NicOf(const Recovery& recovery) const { return *nics_[rails_[recovery.rail].nic]; }
  [[nodiscard]] bool IsControl(uint32_t queue) const { return queue < rails(); }
  Lane& LaneOf(uint32_t queue) { return *lanes_[queue - rails()]; }
  Result<std::unique_ptr<Queue>> MakeQueue(uint32_t queue);
  void BeginQueue(uint32_t queue, std::unique_ptr<Queue> made, bool probe);
  void DestroyQueue(uint32_t queue, const Status& reason);
  void EndQueue(uint32_t queue, const Status& reason);
  void SettleQueue(uint32_t queue);
  void OpenQueue(uint32_t queue);
  /// At the responder, whose queue pair waits in silence.
  [[nodiscard]] bool AwaitsProbe(const Recovery& recovery) const {
    return terms_.role == Role::kResponder && recovery.stage == Stage::kProbing;
  }
  void OfferNext(uint32_t queue);
  /// The peer needs it to connect to what is made next.
  void TellAddress(uint32_t rail);
  void OnNewAddress(const NewAddress& message);
  void OnQueueOver(const QueueOver& message);
  void OnQueueOffer(const QueueOffer& message);
  void OnQueueAnswer(const QueueAnswer& message);

  // Messages and fences
  void PumpLanes();
  void Say(const ControlMessage& message);
  void OnRegionOver(const RegionOver& over);
  void BeginFence(Fence fence);
  void EndFence(const Fence& fence);
  /// What has been asked for in vain until now is made so.
  void MakeFences(TimePoint now);
  void BeginBarrier(uint64_t fence);
  void LookAtBarriers();
  /// The link ends with the next EndBroken.
  void GoDown(Status reason);
  void TakeDown(const Status& reason);
  void Leave();

  Shared shared_;
  Nics nics_;
  LinkTerms terms_;
  State state_ = State::kNew;
  TimePoint patience_;  ///< kProbing: when the silent ones are ended.
  bool closed_ = false;
  bool touched_ = false;
  /// The queue pair that is being destroyed: not over yet, whatever arrives meanwhile.
  std::optional<uint32_t> destroying_;
  bool peer_gone_ = false;  ///< Its shutdown message has come.
  /// Found broken, not ended yet.
  struct Broken {
    uint32_t queue = 0;
    uint32_t generation = 0;
    Status reason;
  };
  std::vector<Broken> broken_;
  std::optional<Status> going_down_;
  std::string last_reason_;  ///< Why a queue pair broke.
  uint64_t own_cookie_;
  uint64_t peer_cookie_ = 0;
  std::vector<Rail> rails_;
  std::vector<Recovery> recoveries_;
  std::unique_ptr<Control> control_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  PeerRegions imports_;
  Leases leases_;
  PeerGrants grants_;
  std::vector<Fence> fences_;
  std::vector<Barrier> barriers_;
  uint64_t last_fence_ = 0;
  /// Initiator, until it is established: by NIC, what was offered.
  struct Offered {
    uint8_t nic = 0;
    Address address;
    Queues queues;
  };
  std::vector<Offered> offered_;
};

}  // namespace weightcast::transport::verbs
