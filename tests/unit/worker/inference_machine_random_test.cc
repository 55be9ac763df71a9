#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "unit/diagram.h"
#include "unit/worker/updates.h"
#include "worker/inference_machine.h"

namespace weightcast::worker {
namespace {

using protocol::Landing;

std::string_view NameOfEvent(const InferenceEvent& event) {
  static constexpr std::string_view kNames[] = {"Welcome",       "Controlled",
                                                "GrantRequest",  "Commit",
                                                "Serve",         "Abort",
                                                "Lost",          "Plan",
                                                "prepared",      "plan failed",
                                                "grants opened", "no grants",
                                                "all arrived",   "source lost",
                                                "fenced",        "buffer set aside",
                                                "verified",      "switch run",
                                                "session ended", "memory lent",
                                                "memory free",   "register()",
                                                "begin()",       "receive()",
                                                "commit()",      "finish()",
                                                "abort()",       "suspend()",
                                                "wait()",        "time-out of a call"};
  static_assert(std::size(kNames) == std::variant_size_v<InferenceEvent>);
  return kNames[event.index()];
}

/// The machine against an environment that does anything it may do at any time.
class RandomWorld {
 public:
  RandomWorld(Landing landing, uint32_t parts, bool verify, uint64_t seed, test::Diagram& steps,
              test::Diagram& states)
      : landing_(landing), parts_(parts), random_(seed), steps_(steps), states_(states) {
    state_.self = {protocol::Role::kInference, "e", 0};
    state_.verify = verify;
    Dispatch(protocol::Welcome{.term = kTerm, .run = {.number = 1}, .lease_seconds = 5});
    Dispatch(RegisterCalled{.landing = landing, .same_memory = false, .parts = parts_});
  }

  /// What a healthy world would do next, mostly; sometimes anything.
  void Step() {
    if (Pick(10) < 6) return Helpful();
    switch (Pick(18)) {
      case 0:
        return Dispatch(PlanArrived{++epoch_});
      case 1:
      case 2:
        return Dispatch(PlanReady{epoch_});
      case 3:
      case 4:
        return NextUpdate();
      case 5:
        return Dispatch(protocol::Commit{Recent()});
      case 6:
        return Dispatch(protocol::Serve{Recent()});
      case 7:
        return AbortOf(Recent());
      case 8:
        return Dispatch(protocol::Lost{{protocol::Role::kTrainer, "", 1}, kDead});
      case 9:
      case 10:
      case 11:
        return DataPlane();
      case 12:
        return Again();
      case 13:
        return Giving();
      default:
        return User();
    }
  }
  [[nodiscard]] int served() const { return served_; }
  /// The controller goes away; afterwards nobody may be left waiting.
  void End() {
    Dispatch(SessionEnded{{Code::kTimedOut, "no controller"}});
    for (int i = 0; i < 4; ++i) DataPlane();
    Dispatch(CallExpired{});
    EXPECT_FALSE(in_call_) << "a call without an answer";
    EXPECT_FALSE(open_) << "grants left open";
  }

 private:
  int Pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  protocol::UpdateId Recent() {
    const auto back = static_cast<uint64_t>(Pick(2));
    return Update(sequence_ > back ? sequence_ - back : sequence_, Pick(9) == 0 ? 0 : epoch_,
                  back == 0 ? attempt_ : 0);
  }

  /// Once the controller has said that no source was told, none will be.
  void AbortOf(const protocol::UpdateId& update) {
    const bool started = update == granted_ && started_;
    if (update == granted_) may_start_ = false;
    const bool calls_wait_on = Pick(2) == 0;  // Superseded, or to be tried again.
    Dispatch(protocol::Abort{
        .update = update, .reason = calls_wait_on ? Status::Ok() : kDead, .started = started});
  }
  /// Another attempt, under the same plan or the next.
  void Again() {
    if (sequence_ == 0) return;
    if (Pick(2) == 0) {
      Dispatch(PlanArrived{++epoch_});
      Dispatch(PlanReady{epoch_});
    }
    Dispatch(protocol::GrantRequest{Update(sequence_, epoch_, ++attempt_), Number(version_)});
  }
  /// Another rank reads what has landed here, or ceases to.
  void Giving() {
    if (std::exchange(lent_, false)) return Dispatch(MemoryFree{});
    if (VersionToLend(state_).number < 0) return;
    lent_ = true;
    Dispatch(MemoryLent{});
  }
  /// Every rank of the engine has the part at hand.
  void NextPart() {
    Dispatch(
        protocol::GrantRequest{.update = state_.update, .version = state_.version, .part = state_.part + 1});
  }
  void NextUpdate() {
    attempt_ = 0;
    Dispatch(protocol::GrantRequest{Update(++sequence_, epoch_), Number(++version_)});
  }

  void Helpful() {
    if (state_.suspended && !in_call_) {
      in_call_ = true;
      receiving_ = false;
      return Dispatch(RegisterCalled{.landing = landing_, .same_memory = Pick(2) == 0, .parts = parts_});
    }
    if (!state_.prepared)
      return state_.epoch == 0 ? Dispatch(PlanArrived{++epoch_}) : Dispatch(PlanReady{epoch_});
    if (state_.uncertain && state_.fenced) return AbortOf(state_.update);
    if (opening_ || open_ || fencing_ || verifying_ || copying_) return DataPlane();
    if (state_.step == worker::Step::kReady && state_.part + 1 < parts_) return NextPart();
    if (state_.step == worker::Step::kReady && !state_.commit)
      return Dispatch(protocol::Commit{state_.update});
    if (state_.step == worker::Step::kCommitted) return Dispatch(protocol::Serve{state_.update});
    if (state_.reclaiming) return Giving();
    if (state_.step == worker::Step::kNone) {
      if (state_.retried) return Pick(4) == 0 ? AbortOf(state_.closed) : Again();
      return NextUpdate();
    }
    User();
  }

  void DataPlane() {
    if (opening_) {
      opening_ = false;
      if (Pick(5) == 0) return Dispatch(OpenFailed{granted_, {Code::kExhausted, "no slot"}});
      open_ = may_start_ = true;
      started_ = false;
      return Dispatch(GrantsOpened{granted_, {}});
    }
    if (fencing_) {
      fencing_ = open_ = false;
      if (landing_ == Landing::kShadow && state_.step == worker::Step::kAborting && Pick(4) == 0) {
        landed_ = -1;  // Another buffer.
        return Dispatch(SpareSetAside{granted_});
      }
      return Dispatch(GrantsFenced{granted_});
    }
    if (verifying_) {
      verifying_ = false;
      return Dispatch(Verified{granted_, Pick(3) == 0 ? Status(Code::kCorrupt, "x") : Status::Ok()});
    }
    if (copying_) {
      copying_ = false;
      if (landing_ == Landing::kShadow && Pick(4) == 0) {
        live_ = before_;  // The engine has refused, and has changed nothing.
        return Dispatch(SwitchRun{.update = granted_, .status = kDead});
      }
      live_ = target_;
      EXPECT_TRUE(landing_ != Landing::kShadow || landed_ == target_) << "copied what is not there";
      return Dispatch(SwitchRun{.update = granted_});
    }
    if (!open_) return;
    if (Pick(8) == 0) return Dispatch(SourceLost{granted_, kDead});
    if (!may_start_) return;
    if (!std::exchange(started_, true)) {
      if (landing_ == Landing::kInPlace) live_ = -2;  // A mixture, from here on.
      return;
    }
    const bool last = state_.part + 1 == parts_;
    if (landing_ == Landing::kInPlace) live_ = last ? target_ : -2;
    landed_ = target_;
    Dispatch(Arrived{granted_, 1, 1});
  }

  void User() {
    if (in_call_) {
      if (Pick(3) == 0) Dispatch(CallExpired{.away = ++expired_ % 4 == 0 ? kDead : Status::Ok()});
      return;
    }
    in_call_ = true;
    receiving_ = false;
    if (Pick(20) == 0) return Dispatch(SuspendCalled{});
    switch (Pick(8)) {
      case 0:
        return Dispatch(RegisterCalled{.landing = landing_, .same_memory = true, .parts = parts_});
      case 1:
      case 2:
        return Dispatch(BeginCalled{});
      case 3:
      case 4:
        handing_on_ = false;
        receiving_ = true;
        return Dispatch(ReceiveCalled{});
      case 5:
        return Pick(3) > 0    ? Dispatch(FinishCalled{})
               : Pick(2) == 0 ? Dispatch(CommitCalled{})
                              : Dispatch(FinishCalled{.commits = false});
      case 6:
        handing_on_ = false;
        return Dispatch(AbortCalled{});
      default:
        return Dispatch(WaitCalled{});
    }
  }

  void Dispatch(const InferenceEvent& event) {
    const InferenceState before = state_;
    readable_ = !in_call_ && CheckReadable(state_).ok();
    const auto actions = Advance(state_, event);
    steps_.Saw(NameOf(before.step), NameOf(state_.step), NameOfEvent(event));
    states_.Saw(protocol::NameOf(before.state), protocol::NameOf(state_.state), NameOfEvent(event));
    CheckServed(before, event);
    for (const auto& action : actions) std::visit([&](const auto& a) { Execute(a); }, action);
    CheckServed(before, event);
    const bool gives_up =
        state_.call == worker::UserCall::kAbort || state_.call == worker::UserCall::kSuspend;
    EXPECT_FALSE(gives_up && state_.step == worker::Step::kNone) << "an Abort waits for nothing";
  }

  void CheckServed(const InferenceState& before, const InferenceEvent& event) {
    EXPECT_EQ(state_.lent, lent_);
    if (const Version lends = VersionToLend(state_); lends.number >= 0) {
      EXPECT_EQ(lends.number, landing_ == Landing::kInPlace ? live_ : landed_)
          << "others would read what is not there";
      EXPECT_FALSE(open_ || opening_) << "others would read what is being written";
    }
    if (state_.served.number < 0) return;
    EXPECT_EQ(state_.served.number, live_) << "a version is reported whose bytes are not there";
    EXPECT_FALSE(landing_ == Landing::kInPlace && open_) << "reported while live memory may be written";
    EXPECT_FALSE(copying_);
    const bool told = std::holds_alternative<protocol::Serve>(event) || state_.served.number == last_served_;
    EXPECT_TRUE(before.served == state_.served || told) << "a new version without Serve";
    if (last_served_ != state_.served.number) ++served_;
    last_served_ = state_.served.number;
  }

  void Execute(const SendMessage& send) {
    if (const auto* granted = std::get_if<protocol::Granted>(&send.message)) {
      EXPECT_TRUE(open_);
      EXPECT_EQ(granted->update, granted_);
      if (landing_ == Landing::kInPlace) {
        EXPECT_EQ(state_.user, UserPhase::kBegun) << "granted while the engine runs";
      }
    }
    const bool closes = std::holds_alternative<protocol::Ready>(send.message) ||
                        std::holds_alternative<protocol::Committed>(send.message);
    EXPECT_FALSE(closes && open_) << "ready before the fence";
    const auto* aborted = std::get_if<protocol::Aborted>(&send.message);
    EXPECT_FALSE(aborted != nullptr && open_ && aborted->update == granted_) << "aborted before the fence";
  }
  void Execute(const SendRegistration&) {
    if (landing_ == Landing::kShadow) landed_ = -1;
  }
  void Execute(const ReclaimMemory&) { EXPECT_TRUE(lent_) << "nobody reads it"; }
  void Execute(const OpenGrants& open) {
    EXPECT_FALSE(open_ || opening_ || copying_ || verifying_) << "two owners of one buffer";
    EXPECT_FALSE(lent_) << "granted while others read it";
    EXPECT_FALSE(handing_on_) << "granted while the engine reads what has come";
    EXPECT_FALSE(readable_ && landing_ == Landing::kInPlace) << "granted while Digest may read it";
    landed_ = -2;
    opening_ = true;
    granted_ = open.update;
    target_ = state_.version.number;
  }
  void Execute(const RevokeGrants& revoke) {
    EXPECT_TRUE(open_ && revoke.update == granted_);
    fencing_ = true;
  }
  void Execute(const VerifyChecksums&) { verifying_ = true; }
  void Execute(const RunSwitch&) {
    EXPECT_EQ(state_.user, UserPhase::kBegun) << "copied while the engine runs";
    EXPECT_TRUE(in_call_) << "nobody there to copy";
    copying_ = true;
    before_ = std::exchange(live_, -2);
  }
  void Execute(const AnswerCall& answer) {
    EXPECT_TRUE(in_call_ || state_.epoch == 0) << "an answer too many";
    in_call_ = false;
    if (receiving_ && answer.status.ok() && answer.part + 1 < parts_) {
      EXPECT_FALSE(open_ || opening_) << "handed on while it may be written";
      handing_on_ = true;
    }
  }

  Landing landing_;
  const uint32_t parts_;  ///< Of an update.
  std::mt19937_64 random_;
  test::Diagram& steps_;
  test::Diagram& states_;
  InferenceState state_;
  uint32_t epoch_ = 0;
  uint64_t sequence_ = 0;
  uint32_t attempt_ = 0;
  int64_t version_ = 0;
  int64_t live_ = -1;    ///< What the live tensors really hold.
  int64_t before_ = -1;  ///< Likewise, before the switch began.
  int64_t target_ = -1;
  int64_t landed_ = -1;  ///< What the spare buffer really holds.
  int64_t last_served_ = -1;
  int served_ = 0;
  protocol::UpdateId granted_;
  bool opening_ = false, open_ = false, fencing_ = false, verifying_ = false, copying_ = false;
  bool started_ = false;    ///< A source has been told of the grants ...
  bool may_start_ = false;  ///< ... or may still be.
  int expired_ = 0;         ///< Calls.
  bool in_call_ = false;
  bool receiving_ = false;   ///< The call is, or was, Receive ...
  bool handing_on_ = false;  ///< ... and its part has not been handed on.
  bool readable_ = false;    ///< Digest might be running.
  bool lent_ = false;
};

TEST(InferenceMachineRandom, NeverReportsAMixtureWhateverHappens) {
  test::Diagram steps;
  test::Diagram states;
  int served = 0;
  for (uint64_t seed = 0; seed < 800 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const auto parts = static_cast<uint32_t>(seed % 4 == 0 ? 1 + seed / 4 % 3 : 1);
    RandomWorld world(seed % 2 == 0 ? Landing::kInPlace : Landing::kShadow, parts, seed % 3 == 0, seed, steps,
                      states);
    for (int step = 0; step < 400 && !testing::Test::HasFailure(); ++step) world.Step();
    world.End();
    served += world.served();
  }
  EXPECT_GT(served, 800) << "the walk hardly ever gets anywhere and proves nothing";
  steps.ExpectInDocs("a rank in an update");
  states.ExpectInDocs("states of a rank");
}

}  // namespace
}  // namespace weightcast::worker
