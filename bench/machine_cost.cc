// What the controller's machine costs in a cluster of a given size, without network and workers: processor
// time of its steps, bytes of the messages that it sends, and peak memory.
//
//     ninja -C build/debug machine_cost && build/debug/tests/machine_cost TRAINERS ENGINES RANKS SOURCES
//     [LIMIT...]
//
// RANKS is for each engine; each rank has SOURCES trainers. LIMITs are join=SECONDS, update=SECONDS,
// megabytes=MB (sent in the update) and memory=MIB: over one of them it exits with 1. growth=RATIO measures a
// cluster of a quarter of the trainers and engines too: join and update may cost RATIO times as much in the
// large one. Figures to be reported need a build with optimisation.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "control/controller_machine.h"
#include "protocol/codec.h"

namespace {

using namespace weightcast;
using namespace weightcast::control;

double ProcessorSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}
double PeakMib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Size {
  uint32_t trainers = 0;
  uint32_t engines = 0;
  uint32_t ranks = 0;
  uint32_t sources = 0;
};

struct Cost {
  double machine = 0;   ///< Seconds in steps.
  double encoding = 0;  ///< Seconds.
  uint64_t messages = 0;
  uint64_t encoded = 0;  ///< Bytes, each message once.
  uint64_t sent = 0;     ///< Bytes, to each worker.
  [[nodiscard]] double seconds() const { return machine + encoding; }
};

/// Workers that answer at once, around one machine.
class Cluster {
 public:
  explicit Cluster(const Size& size) : size_(size) { config_.term = {.number = 1, .id = 77}; }

  Cost Join() {
    cost_ = {};
    for (uint32_t rank = 0; rank < size_.trainers; ++rank)
      Attach({.role = protocol::Role::kTrainer, .engine = "", .rank = rank}, size_.trainers);
    for (uint32_t engine = 0; engine < size_.engines; ++engine)
      for (uint32_t rank = 0; rank < size_.ranks; ++rank)
        Attach({.role = protocol::Role::kInference, .engine = StrCat("engine-", engine), .rank = rank},
               size_.ranks);
    Settle();
    return cost_;
  }

  Cost Plan() {
    cost_ = {};
    Do(TimerFired{{TimerKind::kPlan, 0}});
    if (!plan_) return cost_;
    plan_->engines.swap(engines_);
    destinations_.clear();
    for (const auto& engine : engines_)
      destinations_.insert(destinations_.end(), engine.begin(), engine.end());
    for (uint32_t number = 0; number < destinations_.size(); ++number)
      number_[destinations_[number]] = number;
    Do(PlanMade{plan_->epoch});
    Settle();
    return cost_;
  }

  Cost Update() {
    cost_ = {};
    for (SessionId session = 1; session <= size_.trainers; ++session)
      Say(session, protocol::Published{.number = 1, .run = state_.runs.run});
    Settle();
    return cost_;
  }

  [[nodiscard]] bool Served() const { return !state_.updates.open && state_.updates.committed.number == 1; }

 private:
  void Attach(protocol::WorkerName name, uint32_t world_size) {
    const bool trainer = name.role == protocol::Role::kTrainer;
    protocol::Hello hello;
    hello.job = "default";
    hello.name = std::move(name);
    hello.world_size = world_size;
    const SessionId session = ++last_session_;
    hello.incarnation = session;
    Do(Attached{session, std::move(hello)});
    Say(session, protocol::Register{});
    if (!trainer) Say(session, protocol::LandingMap{});
  }
  void Say(SessionId session, protocol::WorkerMessage message) {
    received_.push_back({session, std::move(message)});
  }
  void Settle() {
    while (!received_.empty()) {
      const Event event = std::move(received_.front());
      received_.pop_front();
      Do(event);
    }
  }
  void Do(const Event& event) {
    Actions actions;
    const double begin = ProcessorSeconds();
    Step(config_, state_, event, actions);
    cost_.machine += ProcessorSeconds() - begin;
    for (Action& action : actions) std::visit([&](auto& what) { Take(what); }, action);
  }

  void Take(Send& action) {
    Count(action.message, 1);
    Hear(action.to, action.message);
  }
  void Take(SendAll& action) {
    Count(action.message, action.to.size());
    for (const SessionId to : action.to) Hear(to, action.message);
  }
  void Take(MakePlan& action) { plan_ = std::move(action); }
  void Take(HandOut& action) {
    for (SessionId session = 1; session <= last_session_; ++session)
      Say(session, protocol::Prepared{.epoch = action.epoch});
  }
  template <typename Other>
  void Take(Other&) {}

  void Count(const protocol::ControllerMessage& message, uint64_t workers) {
    const double begin = ProcessorSeconds();
    const uint64_t bytes = protocol::Encode(message).size();
    cost_.encoding += ProcessorSeconds() - begin;
    cost_.messages += workers;
    cost_.encoded += bytes;
    cost_.sent += bytes * workers;
  }

  /// Workers answer what the machine waits for. A rank has every byte when its last source has its Start.
  void Hear(SessionId to, const protocol::ControllerMessage& message) {
    if (const auto* request = std::get_if<protocol::GrantRequest>(&message)) {
      protocol::Granted granted{.update = request->update, .grants = {}};
      for (uint32_t i = 0; i < size_.sources; ++i)
        granted.grants.push_back({.source = SourceOf(to, i), .slot = 1, .id = (uint64_t{to} << 32) + i});
      Say(to, std::move(granted));
    } else if (const auto* start = std::get_if<protocol::Start>(&message)) {
      for (const protocol::DestinationGrant& grant : start->grants) Started(*start, grant.destination);
    } else if (const auto* commit = std::get_if<protocol::Commit>(&message)) {
      Say(to, protocol::Committed{.update = commit->update});
    } else if (const auto* serve = std::get_if<protocol::Serve>(&message)) {
      Say(to, protocol::Serving{.update = serve->update, .version = state_.updates.open->version});
    }
  }
  void Started(const protocol::Start& start, uint32_t destination) {
    const SessionId rank = destinations_[destination];
    if (++started_[rank] < size_.sources) return;
    protocol::Ready ready{.update = start.update, .bytes = 1000 * uint64_t{size_.sources}, .seconds = 0.5};
    for (uint32_t i = 0; i < size_.sources; ++i)
      ready.sources.push_back({.source = SourceOf(rank, i), .bytes = 1000, .seconds = 0.5});
    Say(rank, std::move(ready));
  }
  [[nodiscard]] uint32_t SourceOf(SessionId rank, uint32_t i) const {
    return static_cast<uint32_t>((uint64_t{number_.at(rank)} * size_.sources + i) % size_.trainers);
  }

  const Size size_;
  MachineConfig config_;
  MachineState state_ = InitialState();
  SessionId last_session_ = 0;
  std::deque<MessageReceived> received_;
  std::optional<MakePlan> plan_;
  std::vector<std::vector<SessionId>> engines_;
  std::vector<SessionId> destinations_;
  std::map<SessionId, uint32_t> number_;
  std::map<SessionId, uint32_t> started_;
  Cost cost_;
};

struct Measured {
  double join = 0;  ///< Seconds, with the plan.
  double update = 0;
  double megabytes = 0;
};

Measured Measure(const Size& size, bool print) {
  Cluster cluster(size);
  const Cost join = cluster.Join();
  const Cost plan = cluster.Plan();
  const Cost update = cluster.Update();
  if (!cluster.Served()) {
    std::fprintf(stderr, "machine_cost: the update did not come to its end\n");
    std::exit(2);
  }
  if (print) {
    std::printf("%u trainers, %u engines of %u ranks, %u sources each; processor seconds\n", size.trainers,
                size.engines, size.ranks, size.sources);
    std::printf("%-8s %9s %9s %12s %14s %12s\n", "", "machine", "encoding", "messages", "encoded MB",
                "sent MB");
    for (const auto& [name, cost] : {std::pair{"join", join}, {"plan", plan}, {"update", update}})
      std::printf("%-8s %9.3f %9.3f %12lu %14.1f %12.1f\n", name, cost.machine, cost.encoding, cost.messages,
                  static_cast<double>(cost.encoded) / 1e6, static_cast<double>(cost.sent) / 1e6);
    std::printf("peak memory %.0f MiB\n", PeakMib());
  }
  return {.join = join.machine + plan.machine,
          .update = update.machine,
          .megabytes = static_cast<double>(update.sent) / 1e6};
}

/// The least of several runs: others use the processor too.
Measured LeastOf(const Size& size, int runs) {
  Measured least = Measure(size, false);
  for (int i = 1; i < runs; ++i) {
    const Measured again = Measure(size, false);
    least.join = std::min(least.join, again.join);
    least.update = std::min(least.update, again.update);
  }
  return least;
}

bool Within(const char* what, double measured, double limit) {
  if (measured <= limit) return true;
  std::fprintf(stderr, "machine_cost: %s is %.3f, over the limit of %.3f\n", what, measured, limit);
  return false;
}

bool Keeps(const std::string& limit, const Size& size, const Measured& measured) {
  const size_t equals = limit.find('=');
  const std::string name = limit.substr(0, equals);
  const double value = equals == std::string::npos ? 0 : std::atof(limit.c_str() + equals + 1);
  if (name == "join") return Within("join", measured.join, value);
  if (name == "update") return Within("update", measured.update, value);
  if (name == "megabytes") return Within("megabytes", measured.megabytes, value);
  if (name == "memory") return Within("memory", PeakMib(), value);
  if (name == "growth") {
    const Size quarter{size.trainers / 4, size.engines / 4, size.ranks, size.sources};
    const Measured small = LeastOf(quarter, 5);
    const Measured large = LeastOf(size, 3);
    const bool join = Within("growth of join", large.join / small.join, value);
    const bool update = Within("growth of update", large.update / small.update, value);
    const bool bytes = Within("growth of megabytes", large.megabytes / small.megabytes, value);
    return join && update && bytes;
  }
  std::fprintf(stderr, "machine_cost: no limit is called %s\n", name.c_str());
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: machine_cost TRAINERS ENGINES RANKS SOURCES [LIMIT=VALUE...]\n");
    return 2;
  }
  const auto number = [&](int i) { return static_cast<uint32_t>(std::atoi(argv[i])); };
  const Size size{number(1), number(2), number(3), number(4)};
  const Measured measured = Measure(size, true);
  bool keeps = true;
  for (int i = 5; i < argc; ++i) keeps = Keeps(argv[i], size, measured) && keeps;
  return keeps ? 0 : 1;
}
