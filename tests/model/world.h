#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "tests/model/config.h"

/// The state that is searched, as plain bytes: what is large (the machines' states, messages, queues) stands
/// in pools, here by its number. Two worlds are the same if their bytes are.
namespace weightcast::model {

inline constexpr int kMaxTrainers = 2;
inline constexpr int kMaxEngines = 2;
inline constexpr int kMaxRanks = 4;  ///< Of all engines.
inline constexpr int kMaxProcesses = kMaxTrainers + kMaxRanks;
inline constexpr int kMaxWrites = 32;
inline constexpr int kBoxes = 2;  ///< Of a rank, and of a trainer that holds all.
inline constexpr int kMaxStragglers = 2;
inline constexpr int kMaxControllers = 2;

/// A message that may come again: its number, the process, and which way.
inline constexpr uint32_t kStragglerUp = 1U << 31;
inline constexpr uint32_t kStragglerLeft = 1U << 30;  ///< It has not come yet.
inline constexpr uint32_t kStragglerMessage = (1U << 24) - 1;
inline int StragglerOf(uint32_t straggler) { return static_cast<int>(straggler >> 24 & 0x3f); }

/// What a box holds: the version that was written into it, as origin, run (4 bits), kAnew, number (3 bits).
/// With kAnew it was published after a trainer had been started again that had published in that run: the
/// number means two things.
using Content = uint16_t;
inline constexpr Content kAnew = 8;
inline constexpr Content kTorn = 0xffff;     ///< Half written.
inline constexpr Content kGarbage = 0xfffe;  ///< Of no version: fresh memory.
inline constexpr Content kNothing = 0;
/// What versions are ordered by: run and number.
inline Content OrderOf(Content version) { return version & 0xff; }

enum class Life : uint8_t { kDead, kRunning, kStopped };
enum class Link : uint8_t {
  kNone,    ///< No stream, and the worker knows of no session to resume.
  kHello,   ///< Its Hello is on its way.
  kLinked,  ///< In a session.
  kBroken,  ///< The stream broke; the controller keeps the session for a lease.
  kEnded,   ///< The client has given up for good.
};
enum class GrantState : uint8_t { kNone, kOpen, kRevoking };
/// How far a rank has come in the update that it was asked for, by what the controller has received.
enum class Heard : uint8_t {
  kNone,
  kGranted,
  kReady,
  kTold,  ///< Not heard: it was told Commit.
  kCommitted,
};
enum class Standing : uint8_t {
  kApart,  ///< Not asked, or told to leave.
  kIn,
  kAgain,  ///< Told to let go without a reason: it is asked again, unless all trainers have something newer.
};
/// What one knows of a session who reads each message that the controller gets and sends, and nothing of
/// what it makes of them. Over when the session is.
struct Ledger {
  // A rank.
  uint16_t update;               ///< The last that it was asked for ...
  uint16_t told;                 ///< ... and was told to serve.
  std::array<uint16_t, 2> owed;  ///< Aborts that it has not answered; 0: none.
  uint16_t part;                 ///< That it was asked for last.
  Content version;               ///< Of the update; of a trainer, what it published last.
  Content serves;                ///< What it has said last that it serves.
  Heard heard;
  Standing standing;
  uint8_t fresh;    ///< The update is to a version whose publication waits for its answer.
  uint8_t started;  ///< A source was told to write to it.
  uint8_t doubted;  ///< One of its sources has said that it failed by itself.
  // A trainer.
  uint8_t published;              ///< The number that it published last ...
  uint8_t waits;                  ///< ... and has no answer for yet.
  std::array<uint8_t, 3> filler;  ///< Always 0: without it the compiler would pad.
};
/// A worker's place at one controller.
struct Seat {
  uint32_t up;       ///< Queue to the controller, of `session`.
  uint16_t session;  ///< As the controller knows it; 0: none.
  uint16_t stale;    ///< The one before, whose stream has broken: the controller has not forgotten it yet.
  Ledger ledger;     ///< Of the session that the controller knows, `session` or `stale`.
};

enum class UserAt : uint8_t {
  kOutside,
  kBegun,
  kHandingOn,  ///< Receive has returned with a part that is not the last.
  kReceived,
  kMustAbort,
};

struct Process {
  uint32_t machine;      ///< Its state.
  uint32_t down;         ///< Queue from the controller that it follows.
  uint32_t plan;         ///< The plan it follows; 0: none.
  uint32_t peer_source;  ///< A rank's machine as a source for others.
  uint32_t giving;       ///< The plan in which it is one; 0: none.
  uint32_t hello;        ///< The Hello on its way.
  std::array<Seat, kMaxControllers> seats;
  uint16_t grant;                     ///< The update for which the grants are open.
  uint16_t asked;                     ///< The last update for which a controller asked for grants.
  std::array<Content, kBoxes> live;   ///< Of an inference rank, by box.
  std::array<Content, kBoxes> spare;  ///< The second buffer.
  Content newest;                     ///< The newest it has served.
  Content content;                    ///< What a trainer's sources hold.
  Life life;
  Link link;   ///< To the controller `at`.
  uint8_t at;  ///< Of the other one it knows no session; that one may not have noticed.
  uint8_t incarnation;
  uint8_t dropping;   ///< What it says concerns a session that is over, until it registers.
  uint8_t preparing;  ///< Its connections for `plan` are being made ...
  uint8_t joining;    ///< ... and for `giving`.
  // An inference rank.
  UserAt user;
  uint8_t paused;  ///< The engine's user does not read the live tensors.
  GrantState grants;
  uint8_t grant_serial;  ///< Names the grants; never used twice by a process.
  uint8_t arrived;       ///< Set of the boxes whose last signal has come.
  uint8_t verifying;
  uint8_t copying;
  uint8_t registering;  ///< The user waits to register: 1 other memory, 2 the same.
  // A trainer.
  uint8_t number;  ///< Last published.
  uint8_t busy;    ///< The user may not change the sources.
  uint8_t run;     ///< Of what it published last.
  uint8_t former;  ///< Of what an incarnation before it published.
  uint8_t filler;  ///< Always 0: without it the compiler would pad.
};

enum class Job : uint8_t {
  kNone,
  kSending,
  kEnding,  ///< Stopped or failed; the sources may still be read.
  kGone,    ///< The sender has let go; bytes on the wire may still land.
};
/// Where its bytes are.
enum class Wire : uint8_t {
  kOff,      ///< Nothing lands, or nothing more.
  kOpen,     ///< They may land; with `pull`: the target knows of them, and has begun nothing.
  kPulling,  ///< The target's own engine copies them ...
  kPulled,   ///< ... and has. Whether they were the source's is still to be looked at.
};
/// The one-sided write of a source's boxes to a rank, under a grant.
struct Write {
  uint16_t update;
  uint16_t part;
  Job job;
  Wire wire;
  uint8_t landed;                        ///< 1: half of it, 2: all, and its signal has come.
  uint8_t serial;                        ///< Of the grant.
  uint8_t destination;                   ///< As the source's plan numbers it.
  uint8_t source;                        ///< Whose memory it reads ...
  uint8_t target;                        ///< ... and to whom it goes.
  uint8_t boxes;                         ///< A set.
  std::array<Content, kBoxes> captured;  ///< The bytes on the wire, once the sender has let go.
};

/// A process that controls. The second one runs only after the adversary has started it.
struct Controller {
  uint32_t machine;  ///< Its state.
  uint16_t timers;   ///< Armed.
  uint16_t last_session;
  uint8_t lives;
  uint8_t term;      ///< Its number ...
  uint8_t id;        ///< ... and its id: never used twice, and ordered as it was drawn (NewTerm).
  uint8_t planning;  ///< Epoch of the plan that is being made; 0: none.
};

struct World {
  std::array<Process, kMaxProcesses> processes;     ///< Trainers, then ranks by engine.
  std::array<Write, kMaxWrites> writes;             ///< In their order; those under way first.
  std::array<uint32_t, kMaxStragglers> stragglers;  ///< Messages that may come again.
  std::array<Controller, kMaxControllers> controllers;
  uint32_t held;     ///< Channels that are held up.
  uint8_t ids;       ///< How many terms there have been.
  uint8_t run_done;  ///< Trainers may begin to publish.
  Budgets budgets;
  std::array<uint8_t, 3> filler;  ///< Always 0: without it the compiler would pad.
};
static_assert(std::has_unique_object_representations_v<World>, "it is hashed byte by byte");
static_assert(std::is_trivially_copyable_v<World>);

}  // namespace weightcast::model
