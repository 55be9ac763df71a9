#pragma once

#include <string_view>

#include "transport/refusals.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/link_shared.h"
#include "transport/tcp/replies.h"

namespace weightcast::transport::tcp {

/// The peer's operations on one lane, each carried out when all bytes before it are in place.
class PeerOperations {
 public:
  static constexpr std::string_view kTooMany = "it has more operations in flight than were agreed on";

  PeerOperations(const LinkShared& shared, Replies& replies)
      : link_(shared.terms.id),
        events_(shared.events),
        regions_(shared.regions),
        grants_(shared.grants),
        replies_(replies) {}

  /// kOk, or why this write may not begin. `region`: where it goes, when it may.
  Code Judge(const Frame& frame, LocalRegion*& region) const;

  // --- Answered. Not empty: how the peer has broken the protocol.
  /// All its bytes are in place, or refused with `code`.
  std::string_view OnWrite(const Frame& frame, Code code);
  std::string_view OnSignal(const Frame& frame);
  std::string_view OnRead(const Frame& frame);

 private:
  /// Delivers it, or says why not.
  Code Deliver(const Signal& signal);
  std::string_view Answer(const Frame& frame, Code code);

  LinkId link_;
  EventQueue& events_;
  Regions& regions_;
  const GrantTable& grants_;
  Replies& replies_;
  Refusals refusals_;
};

}  // namespace weightcast::transport::tcp
