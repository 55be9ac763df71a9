#pragma once

#include <cstdint>
#include <string>

#include "protocol/messages.h"

namespace weightcast::model {

/// What the adversary may do, and how often along one run. Delays and reorderings cost nothing.
struct Budgets {
  uint8_t kills = 0;       ///< A worker process dies. Its bytes on the wire may still land.
  uint8_t restarts = 0;    ///< A dead one is started again, at the same address.
  uint8_t stops = 0;       ///< SIGSTOP, continued at any time, at no cost; or a buffer set aside.
  uint8_t breaks = 0;      ///< A stream breaks: resumed, or the lease runs out.
  uint8_t controller = 0;  ///< A controller dies; the first may start again at any time, and knows nothing.
  uint8_t rivals = 0;      ///< A second controller starts while the first one runs.
  uint8_t astray = 0;      ///< A worker leaves its controller, which may not notice, for the other one.
  uint8_t timeouts = 0;    ///< A timer of the controller fires although something else could happen.
  uint8_t expiries = 0;    ///< The deadline of a blocking call passes.
  uint8_t interrupts = 0;  ///< The same by a signal.
  uint8_t gives_up = 0;    ///< An engine's user calls Abort although all is well.
  uint8_t cancels = 0;     ///< A trainer's user cancels.
  uint8_t registers = 0;   ///< A rank registers again, with the same memory or with other.
  uint8_t paths = 0;       ///< A connection between a source and a rank fails.
  uint8_t failures = 0;    ///< A trainer cannot send any more, and says so: what it has sent may be wrong.
  uint8_t repeats = 0;     ///< A signal of the data plane comes again.
  uint8_t stragglers = 0;  ///< A control message is heard again later, in whatever session: the session layer
                           ///< prevents it, and the machines must not rely on that.
  uint8_t refusals = 0;    ///< With loader landing: the engine refuses to switch, and has changed nothing.
  uint8_t holds = 0;       ///< Departures only: a channel is held up until nothing else can happen.
};

enum class Search : uint8_t {
  kMoves,       ///< Depth counts moves: every interleaving.
  kDepartures,  ///< Depth counts departures from a fair schedule: far into the run with few surprises.
};

/// The cluster that is searched and how.
struct Config {
  std::string name;
  uint8_t trainers = 1;
  uint8_t engines = 1;
  uint8_t ranks = 2;  ///< Of each engine.
  protocol::Landing landing = protocol::Landing::kInPlace;
  bool loader = false;   ///< With shadow landing: the buffer is the engine's, and so is the switch.
  bool together = true;  ///< Policy all; otherwise each.
  bool hold = true;      ///< Trainers publish with hold.
  bool verify = false;   ///< Checksums are compared before Ready.
  bool phases = false;   ///< Engines call Begin, Receive, Finish; otherwise Wait.
  bool halves = false;   ///< A write lands in two parts, so that a single box can be torn.
  bool pull = false;     ///< Targets copy by their own engines what sources order, as GPUs do.
  bool cold = false;  ///< Begins before anybody has joined; otherwise with a plan that all are prepared for.
  bool runs = true;   ///< Bytes of another run are other bytes.
  bool late = false;  ///< The last engine is not there before `restarts` starts it.
  bool replicas = false;  ///< Each trainer holds every box; otherwise each its own.
  uint8_t parts = 1;      ///< In which engines take an update; 2: a box each. With `phases`, in place.
  uint8_t versions = 2;   ///< Each trainer publishes 1 .. versions.
  Budgets budgets;

  Search search = Search::kMoves;
  uint32_t depth = 1000;
  uint64_t states = 1'000'000;  ///< Ends the search when so many are stored.
  double seconds = 0;           ///< The same by the clock; 0: no limit.
  uint32_t live_every = 1;      ///< The fair schedule is run from every k-th stored state; 0: never.
  uint32_t live_steps = 3000;   ///< N: it ends within so many.
  uint32_t walks = 0;           ///< Random walks from states of the last level, once the search has ended.
  uint32_t walk_steps = 400;
  uint64_t seed = 1;
};

}  // namespace weightcast::model
