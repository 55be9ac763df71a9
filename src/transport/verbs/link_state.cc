#include "transport/verbs/link_state.h"

#include <utility>

#include "base/advice.h"
#include "base/random.h"
#include "base/strings.h"

namespace weightcast::transport::verbs {

LinkState::LinkState(const Shared& of_transport, const LinkTerms& of_link)
    : shared(of_transport), terms(of_link), own_cookie(RandomId()) {}

void LinkState::PumpLanes() const {
  for (const auto& lane : lanes) {
    if (phase == Phase::kReady) lane->Pump();  // One that breaks may take the link with it.
  }
}

void LinkState::Say(const ControlMessage& message) {
  if (control->Send(message)) return;
  GoDown(Error(Code::kExhausted, "the peer takes no control messages", kSeePeer));
}

void LinkState::AskFor(const GrantName& grant) {
  if (grants.Ask(grant)) Say(AskGrant{grant});
}

void LinkState::Touch() {
  if (std::exchange(touched, true)) return;
  shared.touched.push_back(terms.id);
}

void LinkState::GoDown(Status reason) {
  if (phase == Phase::kDown || going_down) return;
  going_down = std::move(reason);
  Touch();
}

}  // namespace weightcast::transport::verbs
