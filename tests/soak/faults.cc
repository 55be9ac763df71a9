#include "soak/faults.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

#include "base/strings.h"

namespace weightcast::soak {
namespace {

using Clock = std::chrono::steady_clock;

/// For a stage that may not come by itself.
constexpr double kFaultPatience = 3;
/// What the product promises beside twice the lease.
constexpr double kBound = 5;
/// What comes later than this is called a hang.
constexpr double kHang = 30;

double Random(std::mt19937& random, double least, double most) {
  return std::uniform_real_distribution<double>(least, most)(random);
}

/// The present torment: what was so before, and what must be so after.
class Tormentor {
 public:
  Tormentor(Cluster& cluster, double lease, std::mt19937& random)
      : cluster_(cluster), board_(cluster.board()), lease_(lease), random_(random) {}

  Outcome Run(size_t row, Stage stage) {
    outcome_.victim = PickVictim(row);
    outcome_.kind = PickKind();
    Approach(stage);
    Remember();
    Inflict();
    const auto end = Clock::now();
    // Whatever is published from now on finds everybody well.
    const int64_t target = board_.publish + 1;
    const auto recovered = [&] {
      return std::all_of(board_.process.begin() + kFirstRank, board_.process.end(),
                         [&](const Board::Process& rank) { return rank.served >= target; });
    };
    if (!cluster_.WaitUntil(recovered, 2 * lease_ + kBound)) {
      Violated("does not recover in time");
      if (!cluster_.WaitUntil(recovered, kHang))
        outcome_.violation += StrCat("hangs: not even within ", kHang, " s\n");
    }
    outcome_.seconds = std::chrono::duration<double>(Clock::now() - end).count();
    Check();
    return outcome_;
  }

 private:
  [[nodiscard]] size_t PickVictim(size_t row) {
    if (row == 0) return kController;
    return row == 1 ? kFirstTrainer + random_() % 2 : kFirstRank + random_() % 3;
  }
  [[nodiscard]] Kind PickKind() {
    std::vector<Kind> kinds = {Kind::kKill, Kind::kStop};
    if (cluster_.network() != nullptr) kinds.insert(kinds.end(), {Kind::kUnplug, Kind::kDropPackets});
    if (UsesDevice(cluster_.setup(), outcome_.victim))
      kinds.insert(kinds.end(), {Kind::kLoseContext, Kind::kBlockCall});
    return kinds[random_() % kinds.size()];
  }
  /// The controller is where the others are.
  [[nodiscard]] Stage StageOf(size_t process) const {
    return board_.process[process == kController ? watched_ : process].stage;
  }

  void Approach(Stage stage) {
    watched_ = kFirstRank + random_() % 3;
    const bool at_first = stage == Stage::kStarting || stage == Stage::kPlanning;
    if (at_first) {
      // A first blow, so that it (or, for the controller, somebody) begins again.
      const size_t first = outcome_.victim == kController ? watched_ : outcome_.victim;
      const int starts = cluster_.starts(first);
      cluster_.Kill(first);
      cluster_.WaitUntil([&] { return cluster_.starts(first) > starts; }, kFaultPatience);
    }
    cluster_.WaitUntil([&] { return StageOf(outcome_.victim) == stage; }, kFaultPatience);
    outcome_.stage = StageOf(outcome_.victim);
  }

  void Remember() {
    for (size_t i = 0; i < kProcesses; ++i) errors_[i] = board_.process[i].errors;
    number_ = board_.publish;
    const bool receiving =
        std::any_of(board_.process.begin() + kFirstRank, board_.process.end(),
                    [](const Board::Process& rank) { return rank.stage == Stage::kUpdating; });
    const size_t other = Other();
    replica_ = outcome_.kind == Kind::kKill && RowOf(outcome_.victim) == 1 &&
               cluster_.setup().holding == Holding::kReplicated && receiving &&
               outcome_.stage == Stage::kSending && board_.process[other].stage == Stage::kSending &&
               board_.process[other].finished < number_;
  }
  /// The other trainer.
  [[nodiscard]] size_t Other() const { return 2 * kFirstTrainer + 1 - outcome_.victim; }

  void Inflict() {
    const size_t victim = outcome_.victim;
    switch (outcome_.kind) {
      case Kind::kKill:
        cluster_.Kill(victim);
        return;
      case Kind::kStop:
        cluster_.Stop(victim);
        Pass(Random(random_, 0.5, 2) * lease_);
        SeeThatOthersGoOn();
        cluster_.Continue(victim);
        return;
      case Kind::kUnplug:
        cluster_.network()->SetLink(victim, false);
        Pass(Random(random_, 0.2, 4) * lease_);
        cluster_.network()->SetLink(victim, true);
        return;
      case Kind::kDropPackets:
        cluster_.network()->DropPackets(victim, 5 + static_cast<int>(random_() % 60));
        Pass(Random(random_, 1, 5) * lease_);
        cluster_.network()->DropPackets(victim, 0);
        return;
      case Kind::kLoseContext:
        return LoseContext();
      case Kind::kBlockCall:
        return BlockCall();
      case Kind::kCount:
        return;
    }
  }
  /// It ends by itself, and not without saying why.
  void LoseContext() {
    const size_t victim = outcome_.victim;
    const int starts = cluster_.starts(victim);
    const uint32_t errors = board_.process[victim].errors;
    board_.process[victim].lost = 0;
    board_.process[victim].order = Order::kLoseContext;
    if (!cluster_.WaitUntil([&] { return cluster_.starts(victim) > starts; }, 2 * lease_ + kBound))
      return Violated("does not end though its context is lost");
    bool told = false;
    const Board::Process& process = board_.process[victim];
    for (uint32_t n = errors; n < process.errors; ++n) {
      const std::string_view text = process.error[n % process.error.size()].data();
      told = told || text.find("CUDA_ERROR_ECC_UNCORRECTABLE") != std::string_view::npos;
    }
    if (!told) Violated("ends without the driver's words");
  }
  /// Longer than any lease: nobody is declared dead, so nobody ends and no error says so.
  void BlockCall() {
    const Board::Process& victim = board_.process[outcome_.victim];
    std::array<int, kProcesses> starts{};
    for (size_t i = 0; i < kProcesses; ++i) starts[i] = cluster_.starts(i);
    board_.process[outcome_.victim].order = Order::kBlockCall;
    if (!cluster_.WaitUntil([&] { return victim.blocked > 0; }, 2 * lease_ + kBound))
      return Violated("makes no call that could block");
    // Only now: at its start it was killed first, and of that the others may hear late.
    std::array<uint32_t, kProcesses> errors{};
    for (size_t i = 0; i < kProcesses; ++i) errors[i] = board_.process[i].errors;
    if (!cluster_.WaitUntil([&] { return victim.blocked == 0; }, 2 * kBound))
      return Violated("blocks for ever");
    for (size_t i = 0; i < kProcesses; ++i) {
      if (cluster_.starts(i) != starts[i]) Violated(StrCat(kPlaces[i].text, " has ended meanwhile"));
      const Board::Process& process = board_.process[i];
      for (uint32_t n = errors[i]; n < process.errors; ++n) {
        const std::string_view text = process.error[n % process.error.size()].data();
        if (text.find("missed heartbeats") != std::string_view::npos)
          Violated(StrCat("somebody is dead: ", text));
      }
    }
  }
  void Pass(double seconds) {
    cluster_.WaitUntil([] { return false; }, seconds);
  }

  /// While a rank stands still the other engine goes on; and it comes back in the middle of an update.
  void SeeThatOthersGoOn() {
    if (RowOf(outcome_.victim) != 2) return;
    const size_t other = kPlaces[outcome_.victim].engine == "a" ? kProcesses - 1 : kFirstRank;
    const int64_t target = board_.publish + 1;
    const auto goes_on = [&] { return board_.process[other].served >= target; };
    if (!cluster_.WaitUntil(goes_on, 2 * lease_ + kBound))
      Violated(StrCat(kPlaces[other].text, " gets nothing new while another engine stands still"));
    cluster_.WaitUntil([&] { return board_.process[other].stage == Stage::kUpdating; }, kFaultPatience);
  }

  void Check() {
    for (size_t i = 0; i < kProcesses; ++i)
      if (board_.process[i].mixtures != 0) Violated(StrCat(kPlaces[i].text, " has served a mixture"));
    if (replica_) {
      outcome_.repaired = board_.process[Other()].committed >= number_;
      if (!outcome_.repaired)
        Violated(StrCat("version ", number_, " was not finished from the replica of the killed trainer"));
    }
    bool any = false;
    bool named = false;
    for (size_t i = 0; i < kProcesses; ++i) {
      const Board::Process& process = board_.process[i];
      for (uint32_t n = errors_[i]; n < process.errors; ++n) {
        any = any || i != outcome_.victim;
        const std::string_view text = process.error[n % process.error.size()].data();
        named = named || text.find(kPlaces[outcome_.victim].text) != std::string_view::npos;
        outcome_.errors += StrCat("  ", kPlaces[i].text, ": ", text, "\n");
      }
    }
    outcome_.named = named || !any;
  }
  void Violated(const std::string& what) {
    if (!outcome_.violation.empty()) return;
    outcome_.violation = StrCat(what, " after ", kPlaces[outcome_.victim].text, ", ",
                                kStageNames[static_cast<size_t>(outcome_.stage)], ", was ",
                                kKindNames[static_cast<size_t>(outcome_.kind)], "\n", cluster_.Describe());
  }

  Cluster& cluster_;
  Board& board_;
  const double lease_;
  std::mt19937& random_;
  size_t watched_ = kFirstRank;
  std::array<uint32_t, kProcesses> errors_{};
  int64_t number_ = 0;
  bool replica_ = false;
  Outcome outcome_;
};

}  // namespace

size_t RowOf(size_t process) { return process == kController ? 0 : process < kFirstRank ? 1 : 2; }

bool CanBeHit(size_t row, Stage stage) {
  if (stage == Stage::kPlanning) return true;
  if (stage == Stage::kStarting) return row != 0;
  const bool of_trainers = stage == Stage::kSending || stage == Stage::kCommitting;
  return (row == 1) == of_trainers;
}

std::string ToString(const Hits& hits) {
  static constexpr std::string_view kRows[] = {"controller", "trainer   ", "inference "};
  std::string text = "hits      ";
  for (const std::string_view stage : kStageNames) text += StrCat("  ", stage);
  for (size_t row = 0; row < hits.size(); ++row) {
    text += StrCat("\n", kRows[row]);
    for (size_t stage = 0; stage < kStageNames.size(); ++stage) {
      const std::string count =
          CanBeHit(row, static_cast<Stage>(stage)) ? std::to_string(hits[row][stage]) : "-";
      text +=
          std::string(2 + kStageNames[stage].size() - std::min(count.size(), kStageNames[stage].size()), ' ');
      text += count;
    }
  }
  return text + "\n";
}

Outcome Torment(Cluster& cluster, size_t row, Stage stage, double lease, std::mt19937& random) {
  return Tormentor(cluster, lease, random).Run(row, stage);
}

}  // namespace weightcast::soak
