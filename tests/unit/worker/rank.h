#pragma once

#include <optional>
#include <vector>

#include "unit/worker/updates.h"
#include "worker/inference_machine.h"

/// What tests of an inference rank's machine have in common.
namespace weightcast::worker {

/// A rank with its runtime and engine played by the test.
struct Rank {
  InferenceState state;
  std::vector<InferenceAction> actions;

  explicit Rank(protocol::Landing landing, bool verify = false) {
    state.self = {protocol::Role::kInference, "e", 0};
    state.verify = verify;
    Do(protocol::Welcome{.term = kTerm, .run = {.number = 1}, .lease_seconds = 5});
    Do(RegisterCalled{.landing = landing, .same_memory = false});
    Do(PlanArrived{1});
    Do(PlanReady{1});
  }
  void Do(const InferenceEvent& event) { actions = Advance(state, event); }
  template <typename T>
  std::optional<T> Sent() const {
    for (const auto& action : actions)
      if (const auto* send = std::get_if<SendMessage>(&action))
        if (const auto* message = std::get_if<T>(&send->message)) return *message;
    return std::nullopt;
  }
  template <typename T>
  std::optional<T> Action() const {
    for (const auto& action : actions)
      if (const auto* found = std::get_if<T>(&action)) return *found;
    return std::nullopt;
  }
  Status Answer() const {
    const auto answer = Action<AnswerCall>();
    return answer ? answer->status : Status(Code::kInternal, "no answer");
  }
  /// From the request to Ready.
  void Fill(uint64_t sequence, int64_t version) {
    Do(protocol::GrantRequest{Update(sequence), Number(version)});
    Do(GrantsOpened{Update(sequence), {}});
    Do(Arrived{Update(sequence), 100, 0.5});
    Do(GrantsFenced{Update(sequence)});
  }
};

/// The engine has paused, and its sources have grants.
inline void GrantInPhases(Rank& rank) {
  rank.Do(BeginCalled{});
  rank.Do(protocol::GrantRequest{Update(1), Number(3)});
  rank.Do(GrantsOpened{Update(1), {}});
}

/// In place, serving version 3, with grants out for the next.
inline void GrantAfterServing(Rank& rank) {
  rank.Do(BeginCalled{});
  rank.Fill(1, 3);
  rank.Do(protocol::Commit{Update(1)});
  rank.Do(ReceiveCalled{});
  rank.Do(FinishCalled{});
  rank.Do(protocol::Serve{Update(1)});
  rank.Do(WaitCalled{});
  rank.Do(protocol::GrantRequest{Update(2), Number(4)});
  rank.Do(GrantsOpened{Update(2), {{.source = 0, .slot = 1, .id = 9}}});
  ASSERT_TRUE(rank.Sent<protocol::Granted>());
  EXPECT_EQ(rank.state.served, Version{}) << "it cannot know that nobody writes";
}

}  // namespace weightcast::worker
