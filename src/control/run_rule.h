#pragma once

#include "control/rules.h"

namespace weightcast::control {

struct RunState;

/// Which run versions are of. A new one begins when a trainer's process is replaced, so that a version that
/// is published again supersedes the one that was lost with it.
class RunRule final : public Runs, private Rule {
 public:
  RunRule(const Context& context, RunState& state) : Rule(context), state_(state) {}

  [[nodiscard]] const protocol::Run& run() const override;
  using Runs::Check;
  [[nodiscard]] Status Check(const protocol::Run& run) const override;
  void Join(uint32_t rank, uint64_t incarnation) override;
  void TrainerJoins(const protocol::Hello& hello) override;
  void RankServed(const Worker& rank) override;

 private:
  /// Versions of the run would not be newer than all that has been served.
  [[nodiscard]] bool IsOver(const protocol::Run& run) const;
  [[nodiscard]] static bool IsOver(const protocol::Run& run, const Worker& rank);
  void Raise(const protocol::Run& run, const Status& reason);
  void Begin(uint64_t after, const Status& reason) { Raise({after + 1, config_.term.id}, reason); }

  RunState& state_;
};

}  // namespace weightcast::control
