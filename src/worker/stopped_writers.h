#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/background.h"
#include "worker/inference_machine.h"
#include "worker/landing.h"
#include "worker/receiver.h"
#include "worker/session.h"

namespace weightcast::worker {

/// What an inference rank does while a stopped process may still write to its memory. The session's loop
/// calls all but Abandon. To be destroyed after the loop and the background threads have ended.
class StoppedWriters {
 public:
  using Memory = std::shared_ptr<LandingMemory>;
  struct Callbacks {
    std::function<void(InferenceEvent)> feed;  ///< The machine.
    std::function<Memory(Memory)> replace;     ///< Takes another spare buffer; returns the one before.
  };
  /// `state` is the machine's; `memory`: what is registered, or null.
  StoppedWriters(Session& session, Background& background, const InferenceState& state, const Memory& memory,
                 Callbacks callbacks)
      : session_(session),
        background_(background),
        state_(state),
        memory_(memory),
        callbacks_(std::move(callbacks)) {}

  /// The grants of an update were revoked. `tell`: when to say that a writer holds them.
  void Watch(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants,
             TimePoint tell = Clock::now());
  /// Keeps a spare buffer, neither granted nor read, until nobody can write there. After the loop, too.
  void Keep(Memory memory, std::string writers);
  /// Of such buffers: each is as large as the weights.
  [[nodiscard]] bool full() const { return quarantine_.size() >= kMost; }
  /// After the loop has ended: waits until `deadline`. What is held then is never given back.
  void Abandon(TimePoint deadline);

 private:
  static constexpr size_t kMost = 2;
  struct Buffer {
    Memory memory;
    std::string writers;  ///< Who holds it, for messages.
  };
  [[nodiscard]] bool IsHeld(const protocol::UpdateId& update) const;
  void OnLate(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants, TimePoint tell);
  Status SetAside(const protocol::UpdateId& update, std::string writers);
  void OnSpareMade(const protocol::UpdateId& update, const std::string& writers, Result<Memory> made);
  std::vector<Buffer> TakeFree(TimePoint deadline);
  void WatchQuarantine();

  Session& session_;
  Background& background_;
  const InferenceState& state_;
  const Memory& memory_;
  const Callbacks callbacks_;
  std::vector<Buffer> quarantine_;
  bool making_spare_ = false;
  Status spare_error_;  ///< Why the last try to make one failed.
};

}  // namespace weightcast::worker
