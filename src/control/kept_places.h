#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "protocol/messages.h"
#include "weightcast/clock.h"

namespace weightcast::control {

/// The ranks of those whose streams a new term has closed. Each is kept for its own process for a while: a
/// member that has a new term begun must not take the place of another by it. So are the groups, whose world
/// size the first to come decides.
class KeptPlaces {
 public:
  void Keep(const protocol::Hello& hello, TimePoint until);
  /// Whether this worker has to come again later, as its rank or group is kept for others.
  [[nodiscard]] bool Bars(const protocol::Hello& hello, TimePoint now);
  /// It is back.
  void Release(const protocol::Hello& hello);

 private:
  struct Group {
    TimePoint until;
    std::map<std::pair<protocol::Role, uint32_t>, uint64_t> incarnations;  ///< By role and rank.
  };
  std::map<std::pair<std::string, std::string>, Group> groups_;  ///< By model and engine.
};

}  // namespace weightcast::control
