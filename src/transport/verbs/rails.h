#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/verbs/address.h"
#include "transport/verbs/link_state.h"
#include "transport/verbs/nic.h"

namespace weightcast::transport::verbs {

/// Which NICs of both sides meet, and at which addresses: what one link offers and answers, and what changes
/// later. docs/verbs.md.
class Rails {
 public:
  using Nics = std::span<const std::unique_ptr<Nic>>;
  /// Of one rail, control first.
  using Queues = std::vector<std::unique_ptr<Queue>>;
  /// A rail's queue pairs as both sides have agreed.
  struct Agreed {
    uint8_t peer_nic = 0;
    Queues queues;
    std::vector<QueueName> peers;  ///< Of each the peer's end. None: they are connected.
  };

  Rails(LinkState& link, Nics nics) : link_(link), nics_(nics) {}

  /// Initiator.
  Result<std::string> Offer();
  Result<std::vector<Agreed>> OnAnswer(std::string_view blob);
  [[nodiscard]] bool offered() const { return !offered_.empty(); }
  /// Gives back what the peer has no use for.
  void Drop() { offered_.clear(); }
  /// Responder: its queue pairs are in `agreed`.
  Result<std::string> Answer(std::string_view offer, std::vector<Agreed>& agreed);

  [[nodiscard]] Nic& NicOf(uint32_t rail) const { return *nics_[rails_[rail].nic]; }
  [[nodiscard]] const Address& PeerOf(uint32_t rail) const { return rails_[rail].peer; }
  /// The peer needs it to connect to what is made next.
  void TellAddress(uint32_t rail);
  void On(const NewAddress& message);
  /// ", mlx5_0 (…) to …" of each.
  [[nodiscard]] std::string Describe() const;

 private:
  struct Rail {
    uint8_t nic = 0;
    Address peer;
    Address own;  ///< As the peer knows it.
  };
  /// Two NICs that reach each other: an index in the offer, and one of ours.
  struct NicPair {
    size_t offered = 0;
    size_t nic = 0;
  };
  /// Initiator, until it is established: by NIC, what was offered.
  struct Offered {
    uint8_t nic = 0;
    Address address;
    Queues queues;
  };

  [[nodiscard]] uint32_t NicsUp() const;
  /// How many of a rail on this NIC: fewer as peers grow.
  [[nodiscard]] uint32_t DataQueuesOf(const Nic& nic) const;
  [[nodiscard]] std::string ReasonNoneIsUp() const;
  [[nodiscard]] std::string ReasonNoneFits(const verbs::Offer& offer) const;
  [[nodiscard]] std::vector<NicPair> PairNics(const verbs::Offer& offer) const;
  [[nodiscard]] Result<Queues> MakeRail(Nic& nic, const Address& peer,
                                        std::span<const QueueName> names) const;

  LinkState& link_;
  Nics nics_;
  std::vector<Rail> rails_;
  std::vector<Offered> offered_;
};

}  // namespace weightcast::transport::verbs
