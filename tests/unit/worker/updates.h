#pragma once

#include "protocol/types.h"
#include "weightcast/status.h"
#include "weightcast/version.h"

/// Updates, versions and reasons for the tests of the workers' machines.
namespace weightcast::worker {

inline constexpr protocol::Term kTerm{.number = 1, .id = 7};

inline protocol::UpdateId Update(uint64_t sequence, uint32_t epoch = 1, uint32_t attempt = 0) {
  return {.term = kTerm, .epoch = epoch, .sequence = sequence, .attempt = attempt};
}
/// In which inference ranks are the sources.
inline protocol::UpdateId PeerUpdate(uint64_t sequence, uint32_t epoch = 2) {
  return Update(sequence, epoch, 1);
}
inline Version Number(int64_t number) { return {.run = 1, .number = number}; }
inline const Status kDead(Code::kPeerDead, "trainer 1 is lost: no heartbeat for 5 s");

}  // namespace weightcast::worker
