#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "transport/verbs/fences.h"
#include "transport/verbs/link_state.h"
#include "transport/verbs/queue_pairs.h"
#include "transport/verbs/rails.h"

namespace weightcast::transport::verbs {

/// One peer, from the offer to the shutdown message: docs/verbs.md. Rails says which NICs meet, QueuePairs
/// how their queue pairs live, Fences what is taken back; what they have in common is a LinkState.
class Link final : private Control::Host {
 public:
  Link(const Shared& shared, Rails::Nics nics, const LinkTerms& terms);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() override;

  // --- Opening
  Result<std::string> MakeOffer() { return rails_.Offer(); }
  Result<std::string> MakeAnswer(std::string_view offer);
  Status Establish(std::string_view answer);
  [[nodiscard]] std::string Describe() const;

  // --- Ending
  /// Completes everything and destroys the data queue pairs. What is left sends its shutdown message: until
  /// `gone`.
  void Close();
  /// After Close: the shutdown message has been delivered, or cannot be.
  [[nodiscard]] bool gone() const {
    return state_.control == nullptr || peer_gone_ || state_.control->lost() || state_.control->delivered();
  }
  /// Ends what was found broken: queue pairs are destroyed here, never inside a completion.
  void EndBroken();

  // --- Traffic
  size_t Post(uint32_t lane, std::span<const Op> ops);
  /// Goes on with what was touched.
  void Continue();
  [[nodiscard]] PeerRegions& imports() { return state_.imports; }

  // --- Grants and fences
  Status OpenGrant(const GrantName& grant, const GrantReach& /*ranges*/) { return fences_.OpenGrant(grant); }
  void Revoke(const GrantName& grant) { fences_.Revoke(grant); }
  void Forget(LocalRegion& region) { fences_.Forget(region); }

  // --- Time and devices
  void Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;
  /// Its port went down or came up, or it died.
  void OnNicChanged(const Nic& nic);

 private:
  using Phase = LinkState::Phase;
  void OnControl(const ControlMessage& message) override;
  void CheckProbes();
  void MarkReady();
  void TakeDown(const Status& reason);

  LinkState state_;
  Rails rails_;
  QueuePairs pairs_;
  Fences fences_;
  TimePoint patience_;      ///< kProbing: when the silent ones are ended.
  bool peer_gone_ = false;  ///< Its shutdown message has come.
};

}  // namespace weightcast::transport::verbs
