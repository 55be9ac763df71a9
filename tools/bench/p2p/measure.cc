#include "tools/bench/p2p/measure.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "base/statistics.h"
#include "tools/bench/p2p/crew.h"
#include "tools/bench/p2p/messages.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMostTransfers = 200'000;
constexpr uint64_t kRoundBytes = 1 << 20;  ///< Of small transfers: about as much as one in the middle.
constexpr uint64_t kMostSlots = 1024;
constexpr uint64_t kLargeBytes = 64 << 20;
/// By then all parties have woken that are to begin at the same time.
constexpr Duration kHeadStart = std::chrono::microseconds(300);

uint64_t PerRound(uint64_t each) { return std::clamp<uint64_t>(kRoundBytes / each, 1, kMostSlots); }

PartyWork WorkOf(const P2pCase& one, const P2pOptions& options) {
  PartyWork work{.op = one.op, .piece_bytes = one.piece_bytes, .iovs = one.iovs};
  if (options.reuse || AnswerTo(one.op))
    work.repeats = PerRound(one.bytes());
  else
    work.slots = PerRound(work.stride());
  return work;
}

/// Bytes of one direction.
uint64_t MemoryFor(const std::vector<P2pCase>& cases, const P2pOptions& options) {
  uint64_t most = 4096;
  for (const P2pCase& one : cases) {
    const PartyWork work = WorkOf(one, options);
    most = std::max(most, work.slots * work.stride());
  }
  return (most + 4095) / 4096 * 4096;
}

/// Nanoseconds from the first begin to the last end of those that share a clock.
class Span {
 public:
  void Add(const PartyTimes& times) {
    begin_ = std::min(begin_, times.begin);
    end_ = std::max(end_, times.end);
  }
  [[nodiscard]] int64_t length() const { return std::max<int64_t>(end_ - begin_, 0); }

 private:
  int64_t begin_ = INT64_MAX;
  int64_t end_ = INT64_MIN;
};

class Measurement {
 public:
  Measurement(const P2pCrew& crew, const P2pCase& one, const P2pOptions& options, uint64_t direction_bytes)
      : crew_(crew), case_(one), options_(options), work_(WorkOf(one, options)) {
    if (options.both) work_.to = direction_bytes;
    const bool write = one.op != "read";
    for (size_t party = 0; party < crew.size(); ++party) {
      const bool first = party % 2 == 0;
      if (options.both || first) runners_.push_back(party);
      if ((one.op == "send" || AnswerTo(one.op)) && !first) receivers_.push_back(party);
      if (AnswerTo(one.op)) continue;  // It fills and checks by itself.
      if (options.both || first == write) fillers_.push_back(party);
      if (options.both || first != write) checkers_.push_back(party);
    }
  }

  Result<P2pResult> Run() {
    const bool large = case_.bytes() >= kLargeBytes;
    const int warm_up = large ? 1 : 3;
    const size_t fewest = (large ? 5 : 10) * runners_.size();
    TimePoint start;
    for (int round = 0;; ++round) {
      if (round == warm_up) {
        transfers_.clear();
        rates_.clear();
        start = Clock::now();
      }
      if (round == 0 || !options_.reuse) WC_RETURN_IF_ERROR(All(Ask::kFill, fillers_));
      WC_RETURN_IF_ERROR(RunRound());
      const bool enough =
          round >= warm_up && transfers_.size() >= fewest &&
          (Seconds(Clock::now() - start) >= options_.seconds || transfers_.size() >= kMostTransfers);
      if (enough || !options_.reuse) WC_RETURN_IF_ERROR(All(Ask::kCheck, checkers_));
      if (enough) return Summary();
      ++work_.seed;
    }
  }

 private:
  /// Has each of them fill, or check what its partner has filled.
  Status All(Ask ask, const std::vector<size_t>& which) {
    for (const size_t party : which) {
      PartyWork work = work_;
      const size_t filler = ask == Ask::kFill ? party : party ^ 1;
      // Directions differ in their bytes, too; the same from first to last where bytes are reused.
      work.seed = ((options_.reuse ? 0 : work_.seed) << 32) + (static_cast<uint64_t>(filler) << 24);
      WC_RETURN_IF_ERROR(crew_.Ask(party, Encode(ask, work)));
    }
    return crew_.AwaitAll(which);
  }

  Status RunRound() {
    PartyWork work = work_;
    const bool cores = runners_.size() <= std::thread::hardware_concurrency();
    if (runners_.size() > 1 && cores && options_.connect.empty())
      work.start = (Clock::now() + kHeadStart).time_since_epoch().count();
    PartyWork receive = work;
    receive.op = AnswerTo(work.op).value_or("recv");
    for (const size_t party : receivers_) WC_RETURN_IF_ERROR(crew_.Ask(party, Encode(Ask::kRun, receive)));
    for (const size_t party : runners_) WC_RETURN_IF_ERROR(crew_.Ask(party, Encode(Ask::kRun, work)));
    Span here;
    Span there;
    uint64_t bytes = 0;
    for (const size_t party : runners_) {
      WC_ASSIGN_OR_RETURN(const std::string answer, crew_.Answer(party));
      WC_ASSIGN_OR_RETURN(const PartyTimes times, DecodeStruct<PartyTimes>(answer));
      (crew_.remote(party) ? there : here).Add(times);
      bytes += times.transfers.size() * case_.bytes();
      for (const int64_t one : times.transfers) transfers_.push_back(static_cast<double>(one) / 1e9);
    }
    WC_RETURN_IF_ERROR(crew_.AwaitAll(receivers_));
    const auto span = static_cast<double>(std::max<int64_t>({here.length(), there.length(), 1}));
    rates_.push_back(static_cast<double>(bytes) / span);
    return Status::Ok();
  }

  Result<P2pResult> Summary() const {
    P2pResult result{.what = case_, .transfers = static_cast<int64_t>(transfers_.size())};
    result.p50_us = Quantile(transfers_, 0.5) * 1e6;
    result.p99_us = Quantile(transfers_, 0.99) * 1e6;
    result.gb_per_s = runners_.size() == 1 ? static_cast<double>(case_.bytes()) / result.p50_us / 1e3
                                           : Median(rates_);  // Bytes by nanoseconds.
    return result;
  }

  const P2pCrew& crew_;
  const P2pCase& case_;
  const P2pOptions& options_;
  PartyWork work_;
  std::vector<size_t> runners_;
  std::vector<size_t> receivers_;  ///< Of sends, pings and signals.
  std::vector<size_t> fillers_;
  std::vector<size_t> checkers_;
  std::vector<double> transfers_;  ///< Seconds.
  std::vector<double> rates_;      ///< GB/s of each round.
};

/// The devices of the parties; none: they have host memory.
Result<std::vector<int32_t>> SetUp(const P2pCrew& crew, const P2pCase& one, uint64_t bytes, bool messages,
                                   const P2pOptions& options) {
  std::vector<size_t> all(crew.size());
  for (size_t party = 0; party < all.size(); ++party) {
    all[party] = party;
    const PartySetup setup{.transport = one.transport,
                           .memory = one.memory,
                           .bytes = bytes,
                           .number = static_cast<uint32_t>(party),
                           .messages = messages,
                           .devices = options.devices};
    WC_RETURN_IF_ERROR(crew.Ask(party, Encode(Ask::kSetUp, setup)));
  }
  std::vector<PartyHello> hellos;
  for (const size_t party : all) {
    WC_ASSIGN_OR_RETURN(const std::string answer, crew.Answer(party));
    WC_ASSIGN_OR_RETURN(PartyHello hello, DecodeStruct<PartyHello>(answer));
    hellos.push_back(std::move(hello));
  }
  for (const size_t party : all) {
    const PartyConnect order{.peer = hellos[party ^ 1], .connects = party % 2 == 0};
    WC_RETURN_IF_ERROR(crew.Ask(party, Encode(Ask::kMeet, order)));
  }
  WC_RETURN_IF_ERROR(crew.AwaitAll(all));
  std::vector<int32_t> devices;
  for (const PartyHello& hello : hellos)
    if (hello.device >= 0) devices.push_back(hello.device);
  return devices;
}

}  // namespace

Status MeasureP2p(const std::vector<P2pCase>& cases, const P2pOptions& options,
                  const std::function<void(const P2pResult&)>& on_result) {
  P2pCrew crew;
  WC_RETURN_IF_ERROR(crew.Start(options));
  const uint64_t direction = MemoryFor(cases, options);
  const bool messages = std::ranges::find(cases, "send", &P2pCase::op) != cases.end();
  WC_ASSIGN_OR_RETURN(
      const std::vector<int32_t> devices,
      SetUp(crew, cases.front(), options.both ? 2 * direction : direction, messages, options));
  for (const P2pCase& one : cases) {
    WC_ASSIGN_OR_RETURN(P2pResult result, Measurement(crew, one, options, direction).Run());
    result.devices = devices;
    on_result(result);
  }
  return Status::Ok();
}

}  // namespace weightcast::tools
