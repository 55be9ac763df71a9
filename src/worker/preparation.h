#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "worker/send_plan.h"
#include "worker/session.h"

namespace weightcast::worker {

/// A source's way from a plan to connections: gathers the landing maps of all destinations (in the loop),
/// then reads the table, connects to all of them at once and imports their regions (in a thread of its own).
class Preparation {
 public:
  using MakeMemory = std::function<Result<std::shared_ptr<const SourceMemory>>()>;
  /// `memory` is called by Run.
  Preparation(protocol::Plan plan, MakeMemory memory) : plan_(std::move(plan)), memory_(std::move(memory)) {}

  [[nodiscard]] uint32_t epoch() const { return plan_.epoch; }
  /// True when every destination's map is there: time to Run.
  bool Add(protocol::PeerLanding landing);
  [[nodiscard]] bool complete() const;

  /// Blocks, at most connect_timeout and a little; ends soon after Cancel. Errors name the destination.
  Result<std::shared_ptr<const SendPlan>> Run(Session& session);
  /// After Run: the destination, by its number in the table, that it failed for; -1 if for none in
  /// particular.
  [[nodiscard]] int64_t unreachable() const { return unreachable_; }
  /// Any thread: a newer plan has come.
  void Cancel() { cancelled_ = true; }

 private:
  Status ImportOne(SendPlan& plan, size_t index) const;
  Result<Connection> Connect(Session& session, const protocol::Member& member, TimePoint deadline) const;

  const protocol::Plan plan_;
  const MakeMemory memory_;
  std::map<uint32_t, protocol::LandingMap> landings_;
  std::atomic<bool> cancelled_{false};
  int64_t unreachable_ = -1;
};

}  // namespace weightcast::worker
