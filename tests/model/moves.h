#pragma once

#include <cstdint>
#include <vector>

#include "tests/model/world.h"

namespace weightcast::model {

/// In the order in which the fair schedule takes them; `a` is a process unless said otherwise.
enum class Kind : uint8_t {
  kRelease,  ///< What was held up goes on: only when nothing else can happen.
  // Messages and sessions.
  kDown,     ///< The worker takes the next message.
  kUp,       ///< The controller `b` takes the next message.
  kHello,    ///< The controller takes the Hello. If it begins a term for it: `b` as in kStartController.
  kConnect,  ///< The worker sends the controller `b` a Hello, of the state it is in now.
  kResume,   ///< A broken stream comes back within the lease.
  kPlanned,  ///< The controller `b` has its plan.
  kStartController,  ///< `b`: the id of its term is below all others, otherwise above.
  // A worker's own steps.
  kPrepare,      ///< Its connections are made.
  kPrepareFail,  ///< One cannot be made: that peer is gone.
  kJoin,         ///< As a source for others: its connections are made.
  kJoinFail,
  kFence,  ///< Nothing can land any more under the revoked grants.
  kVerify,
  kCopy,        ///< Shadow to live, by the user's thread.
  kUser,        ///< The engine's user makes its next call.
  kRegistered,  ///< Nobody reads the old memory any more: what the user registers is taken.
  kPublish,     ///< The trainer's user changes the sources and publishes.
  // Data; `a` is a write.
  kPull,        ///< The target's engine begins to copy it.
  kHalf,        ///< Half of it lands.
  kLand,        ///< All of it, and its signal; with `pull`: all of it.
  kPulled,      ///< The target sees that the copy is over, and takes it as a signal or not.
  kLate,        ///< It lands again: the sources hold other bytes by now.
  kSendEnd,     ///< The sender learns that all has arrived.
  kSendFail,    ///< The path is gone.
  kSendFence,   ///< The sender lets go of the sources.
  kSourceLost,  ///< The rank sees that a source's connection ended; `b`: its number.
  // Time: the fair schedule takes these when nothing else can happen.
  kNotice,    ///< The controller `b` sees that the stream of one broke who is dead or elsewhere.
  kContinue,  ///< SIGCONT.
  kLease,     ///< The controller `b` has heard nothing for a lease.
  kTimer,     ///< `a`: the timer, of the controller `b`.
  kHurry,     ///< The user registers although others still read.
  kGiveUp,    ///< The worker's client ends: no controller for too long.
  kExpire,    ///< The deadline of the blocking call.
  // The adversary's, within its budgets.
  kKill,
  kRestart,
  kStop,
  kBreak,
  kKillController,  ///< `b`.
  kRival,           ///< The second controller starts; `b` as in kStartController.
  kAstray,          ///< The worker sends its Hello to the controller `b`, which it does not follow.
  kEarlyTimer,      ///< `a`: the timer, of the controller `b`; others are slower than it.
  kEarlyExpire,
  kInterrupt,
  kUserAbort,
  kCancel,
  kRegister,     ///< `b`: the same memory.
  kRefuse,       ///< The engine does not switch.
  kSetAside,     ///< A writer is stopped for so long that another buffer takes the place of the spare one.
  kPath,         ///< `a`: a write; its path breaks.
  kSourceFails,  ///< `a`: a write; its trainer fails by itself.
  kRankPath,     ///< The rank sees the path from a source break; `b`: its number.
  kCorrupt,      ///< A checksum does not match.
  kRepeat,       ///< `a`: a write; its signal comes again.
  kKeepDown,     ///< Like kDown, and a copy will come again.
  kKeepUp,       ///< Like kUp.
  kLeave,        ///< What the session that ended has lost will come in the next one.
  kStraggle,     ///< `a`: the copy.
  kHold,         ///< `a`: a channel.
};

struct Move {
  Kind kind{};
  uint8_t a = 0;
  uint8_t b = 0;
  [[nodiscard]] uint32_t Packed() const {
    return static_cast<uint32_t>(kind) | uint32_t{a} << 8 | uint32_t{b} << 16;
  }
  static Move Unpack(uint32_t packed) {
    return {static_cast<Kind>(packed & 0xff), static_cast<uint8_t>(packed >> 8),
            static_cast<uint8_t>(packed >> 16)};
  }
};
using MoveList = std::vector<Move>;

/// Whether a move waits for time to pass.
inline bool IsTime(Kind kind) { return kind >= Kind::kNotice && kind <= Kind::kExpire; }
/// Whether a move is the adversary's.
inline bool IsAdverse(Kind kind) { return kind > Kind::kExpire; }

}  // namespace weightcast::model
