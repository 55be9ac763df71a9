#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "soak/cluster.h"
#include "soak/faults.h"
#include "soak/repairs.h"

// Random faults in small clusters, and a reader in every inference rank that never sees a mixture.
//   soak_protocol [--faults N] [--clusters N] [--seconds N] [--seed N] [--memory host|device|mixed]
// --memory: where the weights are; without it some clusters have them on devices of the fake driver.
//   soak_protocol --repairs N [--seed N]: N updates each that a replica, and an engine, must finish.
// Ends with 0 if every promise held and, for 200 faults or more, each role was hit at least three times in
// each stage.

namespace weightcast::soak {
namespace {

constexpr double kLease = 0.3;
constexpr int kFaultsPerCluster = 20;
constexpr int kLeastHits = 3;
constexpr int kFaultsForAllStages = 200;

struct Options {
  int faults = 60;
  int clusters = 2;
  int repairs = 0;
  std::optional<Where> where;  ///< Unset: drawn for each cluster.
  double seconds = 3600;
  unsigned seed = std::random_device{}();
};

/// The job token of all clusters, in a file.
struct Token {
  Token() {
    const int fd = ::mkstemp(path.data());
    ::close(fd);
    std::ofstream(path) << "a-token-of-sufficient-length\n";
  }
  ~Token() { ::unlink(path.c_str()); }
  std::string path = "/tmp/wc_soak_token_XXXXXX";
};
bool Begins(Cluster& cluster) {
  const auto& processes = cluster.board().process;
  return cluster.WaitUntil(
      [&] {
        return std::all_of(processes.begin() + kFirstRank, processes.end(),
                           [](const Board::Process& rank) { return rank.served >= 1; });
      },
      20);
}

void PlaceOn(Where where, Setup& setup, std::mt19937& random) {
  setup.where = where;
  if (where == Where::kHost) return;
  setup.seed = static_cast<unsigned>(random() % 1000) + 1;
  setup.delay_us = random() % 2 == 0 ? 0 : 5;
  setup.settings["commit_timeout"] = "2";  // More than a driver call blocks.
}

Setup MakeSetup(int number, bool network, const Token& token, std::mt19937& random) {
  Setup setup;
  setup.landing = static_cast<LandingMode>(random() % kLandingNames.size());
  setup.holding = static_cast<Holding>(random() % kHoldingNames.size());
  const int port =
      20000 +
      static_cast<int>((static_cast<unsigned>(::getpid()) * 7U + static_cast<unsigned>(number)) % 10000);
  setup.controller = StrCat(network ? StrCat("10.98.", number, ".1") : std::string("127.0.0.1"), ":", port);
  setup.settings = {{"job", StrCat("soak-", ::getpid(), "-", number)},
                    {"lease", StrCat(kLease)},
                    {"timeout", "2"},
                    {"grant_timeout", "3"},
                    {"commit_timeout", "1"},
                    {"connect_timeout", "1"},
                    {"join_timeout", "20"},
                    {"chunk", "16K"},
                    {"token_file", token.path},
                    {"policy", random() % 2 == 0 ? "all" : "each"}};
  if (!network) {
    setup.settings["bind"] = "127.0.0.1";
    setup.settings["transport"] = random() % 2 == 0 ? "tcp" : "shm";
  }
  return setup;
}

class Soak {
 public:
  explicit Soak(const Options& options) : options_(options), networks_(CanMakeNetworks()) {}

  int Run() {
    std::printf("seed %u, %d faults, %d clusters side by side, lease %.1f s, networks: %s\n", options_.seed,
                options_.faults, options_.clusters, kLease,
                networks_ ? "yes" : "no (needs root, ip and nft)");
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.clusters; ++i) threads.emplace_back([this, i] { Work(i); });
    for (auto& thread : threads) thread.join();
    return Report();
  }

 private:
  void Work(int number) {
    std::mt19937 random(options_.seed + static_cast<unsigned>(number));
    for (int round = 0; GoesOn(); ++round) {
      // Every third in namespaces of its own.
      const bool network = networks_ && (round + number) % 3 == 0;
      Setup setup = MakeSetup(number, network, token_, random);
      constexpr Where kDrawn[] = {Where::kHost, Where::kHost, Where::kDevice, Where::kMixed};
      const Where drawn = kDrawn[random() % std::size(kDrawn)];
      PlaceOn(options_.where.value_or(drawn), setup, random);
      Cluster cluster(number, setup, network ? std::make_unique<Network>(number) : nullptr);
      cluster.board().loads_fail = true;
      if (!Begins(cluster)) {
        Fail("the cluster does not begin\n" + cluster.Describe());
        cluster.KeepLog();
        return;
      }
      bool broken = false;
      for (int i = 0; i < kFaultsPerCluster && Take(); ++i) {
        const auto [row, stage] = Choose(random);
        const Outcome outcome = Torment(cluster, row, stage, kLease, random);
        Note(outcome);
        if (outcome.violation.empty()) continue;
        cluster.KeepLog();
        broken = true;
        break;  // What follows would be the same one's consequence.
      }
      if (broken) continue;
      if (const std::string left = cluster.End(); !left.empty()) {
        Fail(left);
        cluster.KeepLog();
      }
    }
  }
  /// The role and stage that has been hit least.
  std::pair<size_t, Stage> Choose(std::mt19937& random) {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<size_t, Stage>> least;
    int fewest = INT32_MAX;
    for (size_t row = 0; row < tried_.size(); ++row) {
      for (size_t stage = 0; stage < tried_[row].size(); ++stage) {
        if (!CanBeHit(row, static_cast<Stage>(stage)) || tried_[row][stage] > fewest) continue;
        if (tried_[row][stage] < fewest) least.clear();
        fewest = tried_[row][stage];
        least.emplace_back(row, static_cast<Stage>(stage));
      }
    }
    const auto chosen = least[random() % least.size()];
    ++tried_[chosen.first][static_cast<size_t>(chosen.second)];
    return chosen;
  }

  bool GoesOn() {
    const std::lock_guard lock(mutex_);
    return taken_ < options_.faults && violations_ < 3 && Clock::now() < end_;
  }
  bool Take() {
    const std::lock_guard lock(mutex_);
    if (taken_ >= options_.faults || Clock::now() >= end_) return false;
    ++taken_;
    return true;
  }
  void Note(const Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    ++done_;
    ++hits_[RowOf(outcome.victim)][static_cast<size_t>(outcome.stage)];
    ++kinds_[static_cast<size_t>(outcome.kind)];
    slowest_ = std::max(slowest_, outcome.seconds);
    unnamed_ += outcome.named ? 0 : 1;
    if (!outcome.named)
      std::printf("%s", StrCat("no error names ", kPlaces[outcome.victim].text, ", ",
                               kKindNames[static_cast<size_t>(outcome.kind)], ":\n", outcome.errors)
                            .c_str());
    repaired_ += outcome.repaired ? 1 : 0;
    if (done_ % 50 == 0) std::printf("%d faults\n", done_);
    if (!outcome.violation.empty()) Violated(outcome.violation);
    std::fflush(stdout);
  }
  void Fail(const std::string& what) {
    const std::lock_guard lock(mutex_);
    Violated(what);
  }
  void Violated(const std::string& what) {
    ++violations_;
    std::printf("VIOLATION: %s\n", what.c_str());
  }

  int Report() {
    std::printf("%s", ToString(hits_).c_str());
    for (size_t kind = 0; kind < kinds_.size(); ++kind)
      std::printf("%d %.*s%s", kinds_[kind], static_cast<int>(kKindNames[kind].size()),
                  kKindNames[kind].data(), kind + 1 < kinds_.size() ? ", " : "\n");
    std::printf(
        "%d faults, %d violations; slowest recovery %.2f s (bound %.1f); %d updates finished from a replica; "
        "%d times no error named the victim\n",
        done_, violations_, slowest_, 2 * kLease + 5, repaired_, unnamed_);
    bool all = true;
    for (size_t row = 0; row < hits_.size(); ++row)
      for (size_t stage = 0; stage < hits_[row].size(); ++stage)
        all = all && (!CanBeHit(row, static_cast<Stage>(stage)) || hits_[row][stage] >= kLeastHits);
    if (!all && options_.faults >= kFaultsForAllStages)
      std::printf("VIOLATION: some stage was hit too seldom\n");
    const bool enough = done_ >= options_.faults;
    if (!enough) std::printf("VIOLATION: only %d of %d faults\n", done_, options_.faults);
    return violations_ == 0 && enough && (all || options_.faults < kFaultsForAllStages) ? 0 : 1;
  }

  using Clock = std::chrono::steady_clock;

  const Options options_;
  const bool networks_;
  const Token token_;
  const Clock::time_point end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                    std::chrono::duration<double>(options_.seconds));
  std::mutex mutex_;
  Hits tried_{};
  Hits hits_{};
  std::array<int, static_cast<size_t>(Kind::kCount)> kinds_{};
  int taken_ = 0;
  int done_ = 0;
  int violations_ = 0;
  int unnamed_ = 0;
  int repaired_ = 0;
  double slowest_ = 0;
};

/// N times each of the two ways in which an update goes on without the trainers it began with.
bool RunRepairs(const Options& options, const Token& token, bool all_trainers) {
  const char* what = all_trainers
                         ? "all trainers killed once one engine served, the other engine got it from there"
                         : "one of two trainers killed half-way, the update committed from the other";
  std::mt19937 random(options.seed);
  int done = 0;
  while (done < options.repairs) {
    Setup setup = MakeSetup(0, /*network=*/false, token, random);
    setup.holding = Holding::kReplicated;
    // Slowly, so that there is a middle.
    setup.settings["lanes"] = setup.settings["window"] = "1";
    setup.settings["chunk"] = "4K";
    if (all_trainers) {
      setup.landing = LandingMode::kInPlace;
      setup.settings["policy"] = "each";
    }
    Cluster cluster(0, setup, nullptr);
    std::string violation = Begins(cluster) ? "" : "the cluster does not begin\n" + cluster.Describe();
    for (int i = 0; i < kFaultsPerCluster && done < options.repairs && violation.empty(); ++i) {
      violation = all_trainers ? KillAllTrainers(cluster) : KillOneTrainer(cluster, random);
      done += violation.empty() ? 1 : 0;
    }
    if (violation.empty()) continue;
    cluster.KeepLog();
    std::printf("seed %u; VIOLATION after %d of %d: %s: %s\n", options.seed, done, options.repairs, what,
                violation.c_str());
    return false;
  }
  std::printf("%d of %d: %s\n", done, options.repairs, what);
  std::fflush(stdout);
  return true;
}

bool Take(const std::string& name, const std::string& text, Options& options) {
  const double value = std::atof(text.c_str());
  if (name == "--memory") {
    const auto* const found = std::ranges::find(kWhereNames, std::string_view(text));
    if (found == kWhereNames.end()) return false;
    options.where = static_cast<Where>(found - kWhereNames.begin());
  } else if (name == "--faults") {
    options.faults = static_cast<int>(value);
  } else if (name == "--clusters") {
    options.clusters = static_cast<int>(value);
  } else if (name == "--repairs") {
    options.repairs = static_cast<int>(value);
  } else if (name == "--seconds") {
    options.seconds = value;
  } else if (name == "--seed") {
    options.seed = static_cast<unsigned>(value);
  } else {
    return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  if (const auto code = RunIfStartedByCluster(argc, argv)) return *code;
  Options options;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || !Take(argv[i], argv[i + 1], options)) {
      std::fprintf(
          stderr,
          "soak_protocol: cannot take '%s'; the first lines of tests/soak/main.cc say what it takes\n",
          argv[i]);
      return 2;
    }
  }
  if (options.repairs == 0) return Soak(options).Run();
  const Token token;
  return RunRepairs(options, token, false) && RunRepairs(options, token, true) ? 0 : 1;
}

}  // namespace
}  // namespace weightcast::soak

int main(int argc, char** argv) { return weightcast::soak::Main(argc, argv); }
