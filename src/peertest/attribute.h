#pragma once

#include <cstddef>
#include <vector>

#include "peertest/rounds.h"

namespace weightcast::peertest {

/// What explains that some of the directed pairs are bad.
struct Culprit {
  enum class Kind { kHostOut, kHostIn, kHost, kLink, kLinkBoth };
  Kind kind = Kind::kLink;
  size_t from = 0;  ///< The host, or where the link begins.
  size_t to = 0;    ///< Of links.
  friend bool operator==(const Culprit&, const Culprit&) = default;
};

/// Few culprits first: a host whose pairs of one direction are nearly all bad (three quarters of two or
/// more), then each pair that no such host explains. `tested` and `bad`: directed, without repetition, `bad`
/// among `tested`. Hosts come first, in the order of how much they explain.
std::vector<Culprit> Attribute(size_t hosts, const std::vector<HostPair>& tested,
                               const std::vector<HostPair>& bad);

}  // namespace weightcast::peertest
