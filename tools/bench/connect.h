#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Processes of which one half listens and each of the other half connects to all of these, again and
/// again with fresh endpoints.
struct ConnectCase {
  std::string transport;  ///< "tcp", "shm"; "any": as the settings say.
  int64_t processes = 64;
  int64_t rounds = 5;
  [[nodiscard]] int64_t connecting() const { return processes / 2; }
  [[nodiscard]] int64_t listening() const { return processes - connecting(); }
  [[nodiscard]] int64_t connections() const { return connecting() * listening(); }
};

/// Seconds of one round.
struct ConnectRound {
  double together = 0;  ///< From when all listen until every connection is proved at both ends.
  double calls = 0;     ///< The same from the first call of Connect on.
};

/// Descriptors that the busiest process of a case may need.
uint64_t DescriptorsFor(const ConnectCase& what, const Settings& settings);

/// Every connection has the default lanes unless `settings` say otherwise, and a handshake with a token.
/// Call it while single-threaded: it forks. Errors: kExhausted when this process' limit of
/// descriptors is too low, before anything is started. `on_round`: as each is over.
Result<std::vector<ConnectRound>> MeasureConnect(const ConnectCase& what, const Settings& settings,
                                                 const std::function<void(size_t round)>& on_round);

}  // namespace weightcast::tools
