#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "soak/data_pair.h"

// Random faults in pairs of processes that write and read checked data all the time.
//   soak_data [--faults N] [--pairs N] [--seconds N] [--seed N]
// Ends with 0 if every promise held: what a transfer that ended well has written is there, nothing lands
// after a fence, everything that begins ends, and who outlasts its peers' deaths holds no more than
// before.

namespace weightcast::soak {
namespace {

constexpr double kLease = 0.3;
/// What the product promises beside twice the lease.
constexpr double kBound = 5;
/// Rounds after a fault that prove that data flows again.
constexpr uint64_t kRounds = 3;
/// Rounds before the last look at what a process holds.
constexpr uint64_t kCalm = 20;

enum class Fault { kKill, kStop, kUnplug, kDropSome, kDropAll, kReset, kMute, kCount };
constexpr size_t kFaults = static_cast<size_t>(Fault::kCount);
constexpr std::array<const char*, kFaults> kFaultNames = {
    "killed and started again", "stopped and continued", "unplugged",
    "some packets dropped",     "all packets dropped",   "one TCP connection reset",
    "one TCP connection muted"};
constexpr size_t kWithoutNetwork = 2;

struct Options {
  int faults = 50;
  uint32_t pairs = 4;
  double seconds = 3600;
  unsigned seed = std::random_device{}();
};

struct Row {
  int count = 0;
  int lived = 0;  ///< The connection was the same afterwards.
  double slowest = 0;
};

double Random(std::mt19937& random, double least, double most) {
  return std::uniform_real_distribution<double>(least, most)(random);
}

/// Does it, for as long as it lasts.
void Inflict(DataPair& pair, Fault fault, size_t victim, std::mt19937& random) {
  const auto pass = [&](double least, double most) {
    pair.WaitUntil([] { return false; }, Random(random, least, most) * kLease);
  };
  const Network* network = pair.network();
  switch (fault) {
    case Fault::kKill:
      return pair.Kill(victim);
    case Fault::kStop:
      pair.Stop(victim);
      pass(0.3, 4);
      return pair.Continue(victim);
    case Fault::kUnplug:
      network->SetLink(victim, false);
      pass(0.2, 4);
      return network->SetLink(victim, true);
    case Fault::kDropSome:
      network->DropPackets(victim, 5 + static_cast<int>(random() % 60));
      pass(1, 5);
      return network->DropPackets(victim, 0);
    case Fault::kDropAll:
      network->DropPackets(victim, 100);
      pass(0.5, 5);
      return network->DropPackets(victim, 0);
    case Fault::kReset:
      (void)network->BreakOne(victim, Network::Break::kReset, static_cast<unsigned>(random()));
      return;
    case Fault::kMute:
      (void)network->BreakOne(victim, Network::Break::kMute, static_cast<unsigned>(random()));
      pass(1, 5);
      return network->DropPackets(victim, 0);
    case Fault::kCount:
      return;
  }
}

class Soak {
 public:
  explicit Soak(const Options& options) : options_(options), networks_(CanMakeNetworks()) {}

  int Run() {
    std::printf("seed %u, %d faults, %u pairs, lease %.1f s, networks: %s\n", options_.seed, options_.faults,
                options_.pairs, kLease, networks_ ? "yes" : "no (needs root, ip and nft)");
    std::fflush(stdout);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < options_.pairs; ++i) threads.emplace_back([this, i] { Work(i); });
    for (auto& thread : threads) thread.join();
    return Report();
  }

 private:
  std::unique_ptr<DataPair> MakePair(uint32_t number) const {
    const bool tcp = number % 2 == 1;
    std::map<std::string, std::string> settings = {{"lease", StrCat(kLease)},
                                                   {"connect_timeout", "1"},
                                                   {"chunk", "64K"},
                                                   {"transport", tcp ? "tcp" : "shm"}};
    if (tcp) settings["lanes"] = number % 4 == 1 ? "2" : "3";
    auto network = tcp && networks_ ? std::make_unique<Network>(static_cast<int>(number), 2) : nullptr;
    return std::make_unique<DataPair>(number, number % 4 < 2, settings, std::move(network));
  }

  void Work(uint32_t number) {
    std::mt19937 random(options_.seed + number);
    const auto pair = MakePair(number);
    DataBoard& board = pair->board();
    const auto rounds = [&board] { return board.role[kTarget].rounds.load(); };
    // One of each pair outlasts all deaths of the other, so that what it does not give back adds up.
    const size_t survivor = number % 4 < 2 ? kTarget : kSource;
    if (!pair->WaitUntil([&] { return rounds() > kRounds; }, 20)) return Fail(*pair, "it does not begin");
    while (const auto fault = Take(pair->network() != nullptr, random)) {
      const size_t victim = *fault == Fault::kKill ? 1 - survivor : random() % 2;
      pair->WaitUntil([] { return false; }, Random(random, 0, 0.1));  // Anywhere in a round.
      const uint64_t connections = board.role[kSource].connections;
      Inflict(*pair, *fault, victim, random);
      const auto end = Clock::now();
      const uint64_t then = rounds();
      const bool well = pair->WaitUntil([&] { return rounds() >= then + kRounds; }, 2 * kLease + kBound);
      const std::chrono::duration<double> took = Clock::now() - end;
      Note(*fault, took.count(), board.role[kSource].connections == connections);
      if (!well)
        return Fail(*pair, StrCat("no data flows after: ", kFaultNames[static_cast<size_t>(*fault)]));
    }
    // What lingers for a second goes.
    pair->WaitUntil([] { return false; }, 1.5);
    const uint64_t then = rounds();
    if (!pair->WaitUntil([&] { return rounds() >= then + kCalm; }, 20))
      return Fail(*pair, "no calm at the end");
    const std::string held = Compare(board.role[survivor]);
    if (!pair->End(30)) return Fail(*pair, "it does not end well");
    if (board.violations > 0) return Fail(*pair, "");
    const std::lock_guard lock(mutex_);
    held_ += StrCat("  ", pair->Describe(), "  ", survivor == kTarget ? "the target" : "the source",
                    ", which was never killed: ", held, "\n");
    totals_ += StrCat("  pair ", number, ": ", board.writes.load(), " writes and ", board.reads.load(),
                      " reads ended well, ", board.cancelled.load(), " were cancelled, ",
                      board.timed_out.load(), " timed out, ", board.failed.load(), " failed\n");
  }

  /// First and last of what a process held.
  std::string Compare(const DataBoard::Role& role) {
    struct Held {
      const char* what;
      uint64_t first, last, slack;
    };
    const std::array all = {
        Held{"descriptors", role.first.descriptors, role.last.descriptors, 4},
        Held{"threads", role.first.threads, role.last.threads, 0},
        Held{"shared mappings", role.first.segments, role.last.segments, 4},
        Held{"MiB resident", role.first.resident >> 20, role.last.resident >> 20, 24},
    };
    std::string text;
    for (const Held& held : all) {
      text += StrCat(text.empty() ? "" : ", ", held.first, " -> ", held.last, " ", held.what);
      if (held.last > held.first + held.slack) {
        Violated(StrCat("more ", held.what, " than at first: ", held.first, " -> ", held.last));
      }
    }
    return text;
  }

  /// The next fault: one of those that were seldom so far.
  std::optional<Fault> Take(bool network, std::mt19937& random) {
    const std::lock_guard lock(mutex_);
    if (taken_ >= options_.faults || violations_ > 0 || Clock::now() >= end_) return std::nullopt;
    ++taken_;
    const size_t kinds = network ? kFaults : kWithoutNetwork;
    size_t chosen = random() % kinds;
    for (size_t i = 0; i < kinds; ++i) {
      if (chosen_[i] < chosen_[chosen]) chosen = i;
    }
    ++chosen_[chosen];
    return static_cast<Fault>(chosen);
  }
  void Note(Fault fault, double seconds, bool lived) {
    const std::lock_guard lock(mutex_);
    Row& row = rows_[static_cast<size_t>(fault)];
    ++row.count;
    row.lived += lived ? 1 : 0;
    row.slowest = std::max(row.slowest, seconds);
    if (++done_ % 50 == 0) std::printf("%d faults\n", done_);
    std::fflush(stdout);
  }
  void Fail(DataPair& pair, const std::string& what) {
    pair.KeepLog();
    Violated(StrCat(what, "\n", pair.board().violation.data(), "\n", pair.Describe()));
  }
  void Violated(const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++violations_;
    std::printf("VIOLATION: %s\n", what.c_str());
    std::fflush(stdout);
  }

  int Report() {
    std::printf("%-26s %6s %22s %22s\n", "fault", "times", "connection lived on", "slowest recovery (s)");
    for (size_t i = 0; i < kFaults; ++i) {
      std::printf("%-26s %6d %22d %22.2f\n", kFaultNames[i], rows_[i].count, rows_[i].lived,
                  rows_[i].slowest);
    }
    std::printf("%s%s%d faults, %d violations\n", totals_.c_str(), held_.c_str(), done_, violations_);
    const bool enough = done_ >= options_.faults;
    if (!enough) std::printf("VIOLATION: only %d of %d faults\n", done_, options_.faults);
    return violations_ == 0 && enough ? 0 : 1;
  }

  using Clock = std::chrono::steady_clock;

  const Options options_;
  const bool networks_;
  const Clock::time_point end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                    std::chrono::duration<double>(options_.seconds));
  std::mutex mutex_;
  std::array<Row, kFaults> rows_{};
  std::array<int, kFaults> chosen_{};
  std::string totals_;
  std::string held_;
  int taken_ = 0;
  int done_ = 0;
  int violations_ = 0;
};

int Main(int argc, char** argv) {
  if (const auto code = RunIfStartedByPair(argc, argv)) return *code;
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const double value = std::atof(argv[i + 1]);
    if (name == "--faults") options.faults = static_cast<int>(value);
    if (name == "--pairs") options.pairs = static_cast<uint32_t>(value);
    if (name == "--seconds") options.seconds = value;
    if (name == "--seed") options.seed = static_cast<unsigned>(value);
  }
  return Soak(options).Run();
}

}  // namespace
}  // namespace weightcast::soak

int main(int argc, char** argv) { return weightcast::soak::Main(argc, argv); }
