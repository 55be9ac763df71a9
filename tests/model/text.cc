#include "base/strings.h"
#include "tests/model/model.h"

// Traces that people can read.
namespace weightcast::model {
namespace {

using control::TimerKind;

std::string_view NameOfTimer(uint8_t number) {
  switch (TimerOf(number).kind) {
    case TimerKind::kJoin:
      return "join_timeout";
    case TimerKind::kPlan:
      return "before the next plan";
    case TimerKind::kPrepare:
      return "of the preparation";
    case TimerKind::kCatchUp:
      return "for trainers to catch up";
    case TimerKind::kStep:
      return "of an engine's step";
    case TimerKind::kFence:
      return "for fences";
    case TimerKind::kRetry:
      return "before an engine that could not be reached is planned again";
  }
  return "?";
}

const char* NameOfController(uint8_t number) {
  return number == 0 ? "the controller" : "the second controller";
}

constexpr const char* kSteps[] = {"",      "requested", "opening",  "writing",   "fencing", "verifying",
                                  "ready", "switching", "switched", "committed", "aborting"};

}  // namespace

std::string Model::TextOf(const World& world, Move move) const {
  const auto name = [&](int slot) { return protocol::ToString(NameOf(slot)); };
  const auto front = [&](uint32_t queue) { return machines_.TextOf(machines_.Front(queue)); };
  const Process& p = world.processes[move.a % kMaxProcesses];
  const Seat& seat = p.seats[move.b % kMaxControllers];
  switch (move.kind) {
    case Kind::kRelease:
      return "what was held up goes on";
    case Kind::kDown:
      return StrCat(name(move.a), " takes ", front(p.down));
    case Kind::kKeepDown:
      return StrCat(name(move.a), " takes ", front(p.down), ", which will come once more");
    case Kind::kUp:
      return StrCat(NameOfController(move.b), " takes ", front(seat.up), " of ", name(move.a));
    case Kind::kKeepUp:
      return StrCat(NameOfController(move.b), " takes ", front(seat.up), " of ", name(move.a),
                    ", which will come once more");
    case Kind::kLeave:
      return StrCat(front(p.down), " to ", name(move.a), " will come in the next session");
    case Kind::kStraggle: {
      const uint32_t straggler = world.stragglers[move.a];
      return StrCat((straggler & kStragglerUp) != 0 ? "the controller" : name(StragglerOf(straggler)),
                    " takes ", machines_.TextOf(straggler & kStragglerMessage),
                    (straggler & kStragglerLeft) != 0 ? " of the session before" : " a second time");
    }
    case Kind::kHello:
      return StrCat(NameOfController(p.at), " takes Hello of ", name(move.a), move.b != 0 ? " (low id)" : "");
    case Kind::kConnect:
      return StrCat(name(move.a), " sends Hello to ", NameOfController(move.b));
    case Kind::kResume:
      return StrCat(name(move.a), " resumes its session");
    case Kind::kPlanned:
      return StrCat("the plan of ", NameOfController(move.b), " is made");
    case Kind::kStartController:
      return StrCat("a new controller starts", move.b != 0 ? ", with a low id" : "");
    case Kind::kPrepare:
      return StrCat(name(move.a), " has made its connections");
    case Kind::kPrepareFail:
      return StrCat(name(move.a), " cannot make its connections");
    case Kind::kJoin:
      return StrCat(name(move.a), " has made its connections to give");
    case Kind::kJoinFail:
      return StrCat(name(move.a), " cannot make its connections to give");
    case Kind::kRegistered:
      return StrCat("what the user of ", name(move.a), " registers is taken");
    case Kind::kHurry:
      return StrCat("the user of ", name(move.a), " registers although others still read");
    default:
      return TextOfWork(world, move);
  }
}

/// Of a worker and of bytes.
std::string Model::TextOfWork(const World& world, Move move) const {
  const auto name = [&](int slot) { return protocol::ToString(NameOf(slot)); };
  const auto path = [&] {
    const Write& write = world.writes[move.a];
    return StrCat(name(write.source), " -> ", name(write.target));
  };
  const auto bytes = [&] {
    const Write& write = world.writes[move.a];
    return model::NameOf(BytesOf(world, move.a)[write.boxes == 2 ? 1 : 0]);
  };
  const Process& p = world.processes[move.a % kMaxProcesses];
  switch (move.kind) {
    case Kind::kFence:
      return StrCat(name(move.a), ": nothing can land under its grants any more");
    case Kind::kVerify:
      return StrCat(name(move.a), " has compared the checksums");
    case Kind::kCorrupt:
      return StrCat(name(move.a), " finds a wrong checksum");
    case Kind::kCopy:
      return StrCat(name(move.a), " has copied the shadow buffer into the live tensors");
    case Kind::kRefuse:
      return StrCat(name(move.a), ": the engine refuses to switch");
    case Kind::kUser: {
      static constexpr const char* kCalls[] = {"Begin", "Receive", "Receive", "Finish", "Abort"};
      return StrCat(
          "the user of ", name(move.a), " calls ",
          config_.phases || p.user == UserAt::kMustAbort ? kCalls[static_cast<int>(p.user)] : "Wait");
    }
    case Kind::kPublish:
      return StrCat("the user of ", name(move.a), " changes the sources and publishes v", p.number + 1);
    case Kind::kPull:
      return StrCat(path(), ": the target begins to copy ", bytes());
    case Kind::kPulled:
      return StrCat(path(), ": the target sees that the copy is over");
    case Kind::kHalf:
      return StrCat(path(), ": half of ", bytes(), " lands");
    case Kind::kLand:
      return StrCat(path(), ": ", bytes(), " lands");
    case Kind::kLate:
      return StrCat(path(), ": a late write lands ", bytes());
    case Kind::kRepeat:
      return StrCat(path(), ": the signal comes again");
    case Kind::kSendEnd:
      return StrCat(path(), ": the sender has sent everything");
    case Kind::kSendFail:
      return StrCat(path(), ": the sender finds the path closed");
    case Kind::kPath:
      return StrCat(path(), ": the path breaks for the sender");
    case Kind::kSourceFails:
      return StrCat(path(), ": the sender fails, and doubts what it has sent");
    case Kind::kSendFence:
      return StrCat(path(), ": the sender lets go of the sources");
    case Kind::kSourceLost:
    case Kind::kRankPath:
      return StrCat(name(move.a), " loses the connection of source ", int{move.b});
    default:
      return TextOfFault(world, move);
  }
}

/// Of time, and of what goes wrong.
std::string Model::TextOfFault(const World& world, Move move) const {
  const auto name = [&](int slot) { return protocol::ToString(NameOf(slot)); };
  const Process& p = world.processes[move.a % kMaxProcesses];
  switch (move.kind) {
    case Kind::kNotice:
      return StrCat(NameOfController(move.b), " sees the stream of ", name(move.a), " broken");
    case Kind::kContinue:
      return StrCat(name(move.a), " is continued");
    case Kind::kLease:
      return StrCat("the lease of ", name(move.a), " at ", NameOfController(move.b), " runs out");
    case Kind::kTimer:
    case Kind::kEarlyTimer:
      return StrCat("the timer ", NameOfTimer(move.a), " of ", NameOfController(move.b), " fires");
    case Kind::kGiveUp:
      return StrCat(name(move.a), " gives up: no controller");
    case Kind::kExpire:
    case Kind::kEarlyExpire:
      return StrCat("the deadline of the call of ", name(move.a), " passes");
    case Kind::kInterrupt:
      return StrCat("the call of ", name(move.a), " is interrupted");
    case Kind::kKill:
      return StrCat(name(move.a), " is killed");
    case Kind::kRestart:
      return StrCat(name(move.a), " is started again");
    case Kind::kStop:
      return StrCat(name(move.a), " is stopped");
    case Kind::kBreak:
      return StrCat("the stream of ", name(move.a), " breaks");
    case Kind::kKillController:
      return StrCat(NameOfController(move.b), " dies");
    case Kind::kRival:
      return StrCat("a second controller starts", move.b != 0 ? ", with a low id" : "");
    case Kind::kAstray:
      return StrCat(name(move.a), " leaves for ", NameOfController(move.b));
    case Kind::kUserAbort:
      return StrCat("the user of ", name(move.a), " calls Abort");
    case Kind::kCancel:
      return StrCat("the user of ", name(move.a), " cancels v", p.number);
    case Kind::kRegister:
      return StrCat("the user of ", name(move.a), " registers ", move.b != 0 ? "the same" : "other",
                    " memory");
    case Kind::kSetAside:
      return StrCat(name(move.a), " sets the spare buffer aside and takes another one");
    case Kind::kHold:
      return StrCat("channel ", move.a, " is held up until nothing else can happen");
    default:
      return "?";
  }
}

std::string Model::Show(const World& world) const {
  std::string text;
  for (uint8_t i = 0; i < kMaxControllers; ++i) {
    const Controller& c = world.controllers[i];
    if (c.lives == 0) continue;
    const auto& state = machines_.controller(c.machine);
    const auto view = control::ViewOf(state);
    text +=
        StrCat("  ", NameOfController(i), " of term ", c.term, " (id ", c.id, "): ", view.phase, ", epoch ",
               view.epoch, ", ", state.roster.workers().size(), " workers, timers ", c.timers, "\n");
  }
  for (int slot = 0; slot < processes(); ++slot) {
    const Process& p = world.processes[slot];
    text += StrCat("  ", protocol::ToString(NameOf(slot)), ": ",
                   p.life == Life::kDead      ? "dead"
                   : p.life == Life::kStopped ? "stopped"
                                              : "runs",
                   ", link ", static_cast<int>(p.link), " to ", NameOfController(p.at));
    if (p.down != 0) text += StrCat(", next ", machines_.TextOf(machines_.Front(p.down)));
    if (p.life == Life::kDead) {
      text += "\n";
      continue;
    }
    if (IsTrainer(slot)) {
      const auto& state = machines_.trainer(p.machine);
      text += StrCat(", epoch ", state.epoch, ", published v", p.number, ", sources hold ",
                     model::NameOf(p.content));
      for (const auto& q : state.publications)
        text += StrCat(" [v", q.number, q.release ? " released" : "", q.free ? " free" : "",
                       q.done ? " done]" : "]");
    } else {
      const auto& state = machines_.rank(p.machine);
      text += StrCat(", epoch ", state.epoch, ", ", protocol::NameOf(state.state), ", serves ",
                     model::NameOf(CodeOf(state.served)), ", step ", kSteps[static_cast<int>(state.step)],
                     ", call ", static_cast<int>(state.call), ", user ", static_cast<int>(state.user),
                     state.ended ? ", ended" : "", ", live");
      for (const Content box : p.live) text += StrCat(" ", model::NameOf(box));
      if (config_.landing == protocol::Landing::kShadow) {
        text += ", spare";
        for (const Content box : p.spare) text += StrCat(" ", model::NameOf(box));
      }
      const Content landed = CodeOf(state.landed);
      if (landed != kNothing) text += StrCat(", may give ", model::NameOf(landed));
      if (state.lent) text += ", lent";
    }
    text += "\n";
  }
  return text;
}

}  // namespace weightcast::model
