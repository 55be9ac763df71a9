#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "control/update_words.h"
#include "protocol/messages.h"

namespace weightcast::control {

/// An update that is under way, as publishers and sources see it.
struct UpdateState {
  protocol::UpdateId id;  ///< Of the last attempt.
  Version version;
  bool fresh = false;    ///< Not a version held for engines that came later.
  bool started = false;  ///< Some source was told to.
  bool released = false;
  bool aborted = false;                         ///< The trainers have been told.
  std::vector<SessionId> trainers;              ///< That keep its bytes unchanged until they are released.
  std::vector<protocol::EngineOutcome> absent;  ///< Engines that take no part, with the reason.
  std::vector<protocol::WorkerName> senders;    ///< The sources of each attempt, one after another.
  size_t first_sender = 0;                      ///< Of the last attempt.
  friend bool operator==(const UpdateState&, const UpdateState&) = default;
};

/// The rule of updates': control/update_rule.h.
struct UpdatesState {
  std::optional<UpdateState> open;
  uint64_t sequence = 0;
  uint32_t attempt = 0;
  Version committed;  ///< Last.
  friend bool operator==(const UpdatesState&, const UpdatesState&) = default;
};

}  // namespace weightcast::control
