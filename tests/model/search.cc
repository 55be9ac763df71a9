#include "tests/model/search.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "base/hash.h"
#include "base/strings.h"
#include "tests/model/intern.h"

namespace weightcast::model {
namespace {

uint64_t FingerprintOf(const World& world) {
  return Hash64(std::string_view(reinterpret_cast<const char*>(&world), sizeof world));
}

/// How a state was reached first.
struct Record {
  uint32_t parent = 0;
  uint32_t move = 0;
};
struct Open {
  World world;
  uint32_t record;
};

class Explorer {
 public:
  Explorer(const Config& config, bool say)
      : config_(config), say_(say), model_(config_), random_(config.seed) {}

  Outcome Run() {
    const World root = model_.Initial();
    if (model_.violation()) return Found(root, {}, *model_.violation());
    Visit(root, {0, 0}, level_);
    while (!level_.empty() && !over_) {
      Level();
      if (over_) break;
      outcome_.levels.push_back(sum_);
      sum_ = std::exchange(next_sum_, {});
      ++outcome_.depth;
      std::swap(level_, next_);
      next_.clear();
      Say();
      if (outcome_.depth >= config_.depth) over_ = true;
    }
    outcome_.complete = level_.empty() && !over_;
    if (!outcome_.violation) Walk();
    outcome_.states = records_.size();
    outcome_.seconds = Elapsed();
    return outcome_;
  }

 private:
  /// Everything of this depth. With departures the fair schedule's move costs nothing: its successors join
  /// the level while it is worked on.
  void Level() {
    const bool departures = config_.search == Search::kDepartures;
    std::vector<Open> stack;
    for (size_t i = 0; i < level_.size() && !over_; ++i) {
      stack.push_back(level_[i]);
      while (!stack.empty() && !over_) {
        const Open open = stack.back();
        stack.pop_back();
        Expand(open, departures ? &stack : nullptr);
      }
    }
  }

  void Expand(const Open& open, std::vector<Open>* here) {
    model_.Moves(open.world, moves_);
    const auto fair = here == nullptr ? std::nullopt : model_.Next(open.world, moves_, false);
    if (fair && fair->kind == Kind::kRelease) moves_.push_back(*fair);
    for (const Move move : moves_) {
      World world = open.world;
      model_.Apply(world, move);
      ++outcome_.moves;
      if (model_.violation()) return Stop(open, move, {});
      const bool free = fair && fair->Packed() == move.Packed();
      if (!Visit(world, {open.record, move.Packed()}, free ? *here : next_)) continue;
      if (config_.live_every != 0 && records_.size() % config_.live_every == 0 && !Lives(world))
        return Stop(open, move, live_);
    }
    if (records_.size() >= config_.states ||
        (config_.seconds > 0 && (outcome_.moves & 0xff) == 0 && Elapsed() > config_.seconds))
      over_ = true;
  }

  bool Visit(const World& world, Record record, std::vector<Open>& open) {
    const uint64_t fingerprint = FingerprintOf(world);
    if (seen_.Find(fingerprint) != FingerprintTable::kAbsent) return false;
    const auto id = static_cast<uint32_t>(records_.size());
    seen_.Insert(fingerprint, id);
    records_.push_back(record);
    LevelSum& sum = &open == &next_ ? next_sum_ : sum_;
    ++sum.states;
    sum.fingerprints += fingerprint;
    open.push_back({world, id});
    return true;
  }

  bool Lives(const World& world) {
    for (const bool returns : {true, false}) {
      if (!returns && model_.AnyController(world)) continue;
      ++outcome_.lived;
      live_.clear();
      model_.CheckLiveness(world, returns, nullptr);
      if (!model_.violation()) continue;
      const Violation violation = *model_.violation();
      model_.Forgive();
      model_.CheckLiveness(world, returns, &live_);  // Again, for the trace.
      if (!model_.violation()) std::fprintf(stderr, "not the same twice: %s\n", violation.text.c_str());
      return false;
    }
    return true;
  }

  void Stop(const Open& open, Move last, const MoveList& more) {
    over_ = true;
    outcome_.violation = model_.violation();
    model_.Forgive();
    MoveList path{last};
    for (uint32_t id = open.record; id != 0; id = records_[id].parent)
      path.push_back(Move::Unpack(records_[id].move));
    std::reverse(path.begin(), path.end());
    outcome_.trace = Tell(path, more);
  }
  Outcome Found(const World& world, const MoveList&, const Violation& violation) {
    outcome_.violation = violation;
    outcome_.trace = model_.Show(world);
    return outcome_;
  }

  /// Plays the moves again, in words.
  std::string Tell(const MoveList& path, const MoveList& more) {
    World world = model_.Initial();
    std::string text;
    int number = 0;
    const auto play = [&](Move move) {
      MoveList moves;
      model_.Moves(world, moves);
      const auto fair = model_.Next(world, moves, false);
      const bool departs =
          config_.search == Search::kDepartures && !(fair && fair->Packed() == move.Packed());
      text += StrCat("  ", ++number, departs ? ". * " : ".   ", model_.TextOf(world, move), "\n");
      model_.Apply(world, move);
    };
    for (const Move move : path) play(move);
    if (!more.empty()) {
      text += "  --- no further fault: the fair schedule ---\n";
      model_.EndFaults(world);
      constexpr size_t kShown = 150;
      for (size_t i = 0; i < more.size(); ++i) {
        if (i == kShown) text += "  ...\n";
        if (i < kShown)
          play(more[i]);
        else
          model_.Apply(world, more[i]);
      }
    }
    return text + "  the end:\n" + model_.Show(world);
  }

  /// Beyond the depth that was reached: from states of the last level, wherever chance leads.
  void Walk() {
    const std::vector<Open>& from = next_.empty() ? level_ : next_;
    if (from.empty()) return;
    for (uint32_t walk = 0; walk < config_.walks && !outcome_.violation; ++walk) {
      const Open& start = from[random_() % from.size()];
      World world = start.world;
      MoveList path;
      for (uint32_t step = 0; step < config_.walk_steps; ++step) {
        model_.Moves(world, moves_);
        if (moves_.empty()) break;
        // Mostly forward, or the adversary's budgets are gone at once.
        const auto fair = random_() % 4 != 0 ? model_.Next(world, moves_, false) : std::nullopt;
        const Move move = fair ? *fair : moves_[random_() % moves_.size()];
        path.push_back(move);
        model_.Apply(world, move);
        ++outcome_.walked;
        const bool lives = model_.violation() || step % 64 != 63 || Lives(world);
        if (lives && !model_.violation()) continue;
        const Move first = path.front();
        MoveList rest(path.begin() + 1, path.end());
        rest.insert(rest.end(), live_.begin(), live_.end());
        return Stop(start, first, rest);
      }
    }
  }

  [[nodiscard]] double Elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  void Say() {
    if (!say_) return;
    std::fprintf(stderr, "  depth %u: %zu states, %zu open, %.0f states/s; %s\n", outcome_.depth,
                 records_.size(), level_.size(),
                 static_cast<double>(records_.size()) / std::max(Elapsed(), 1e-3),
                 model_.machines().Sizes().c_str());
  }

  const Config config_;
  const bool say_;
  Model model_;
  std::mt19937_64 random_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  FingerprintTable seen_;
  std::vector<Record> records_;
  std::vector<Open> level_, next_;
  LevelSum sum_, next_sum_;
  MoveList moves_, live_;
  Outcome outcome_;
  bool over_ = false;
};

}  // namespace

Outcome Explore(const Config& config, bool say) { return Explorer(config, say).Run(); }

}  // namespace weightcast::model
