#include "peertest/cluster.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "base/strings.h"
#include "base/thread.h"
#include "peertest/caller.h"
#include "peertest/summary.h"

namespace weightcast::peertest {
namespace {

constexpr size_t kMostThreads = 64;
constexpr auto kHostAnswer = std::chrono::seconds(15);
/// Of an order: each part that does not answer takes up to this long.
constexpr auto kOrder = std::chrono::seconds(90);
constexpr double kParts = 16;

class Cluster {
 public:
  Cluster(const ClusterPlan& plan, const TestMeans& means) : plan_(plan), means_(means) {}

  ClusterFacts Run() {
    const TimePoint begin = Clock::now();
    callers_.resize(plan_.targets.size());
    facts_.hosts.resize(plan_.targets.size());
    ForEachInParallel(plan_.targets.size(), kMostThreads, [this](size_t host) { Meet(host); });
    RefuseTwins();
    std::vector<size_t> present;
    for (size_t host = 0; host < callers_.size(); ++host)
      if (callers_[host] != nullptr) present.push_back(host);
    const auto rounds = RoundsOf(present.size());
    facts_.rounds = rounds.size();
    all_ = present.size() * (present.size() - std::min<size_t>(present.size(), 1)) / 2;
    for (const auto& round : rounds) {
      if (Stopped()) break;
      ForEachInParallel(round.size(), kMostThreads,
                        [&](size_t i) { Test({present[round[i].first], present[round[i].second]}); });
    }
    if (plan_.doubtful) TestAgain(plan_.doubtful(facts_));
    facts_.seconds = Seconds(Clock::now() - begin);
    std::ranges::sort(facts_.pairs, {}, &ClusterPair::hosts);
    return std::move(facts_);
  }

 private:
  [[nodiscard]] bool Stopped() const { return means_.interrupted && means_.interrupted(); }

  void Meet(size_t host) {
    ClusterHost& one = facts_.hosts[host];
    one.target = plan_.targets[host];
    auto opened = Caller::Connect({.address = one.target,
                                   .token = means_.token,
                                   .deadline = In(kConnectTime),
                                   .interrupted = means_.interrupted});
    if (opened.caller == nullptr) {
      one.failure = opened.failure;
      return;
    }
    // Its own name tells where it is reached; an address of its own is told in each test.
    auto hello = opened.caller->Ask<Hello>(AskHello{.report = {}, .peer = ""}, kHostAnswer);
    if (!hello.ok()) {
      one.failure = {hello.status().code() == Code::kProtocol ? "version" : "test", hello.status().message()};
      return;
    }
    one.report = hello->report;
    callers_[host] = std::move(opened.caller);
  }

  /// One process under two names would be tested by itself.
  void RefuseTwins() {
    for (size_t host = 0; host < callers_.size(); ++host) {
      for (size_t other = 0; other < host && callers_[host] != nullptr; ++other) {
        if (callers_[other] == nullptr ||
            facts_.hosts[host].report.instance != facts_.hosts[other].report.instance)
          continue;
        facts_.hosts[host].failure = {"twin", StrCat("it is the same process as ", facts_.hosts[other].target,
                                                     "; remove one of the lines")};
        callers_[host].reset();
      }
    }
  }

  void Test(const HostPair& hosts) {
    if (Stopped()) return;
    ClusterPair pair{.hosts = hosts};
    auto facts = Order(hosts.first, hosts.second);
    if (!facts.ok()) {
      // Its conversation may be over: the other one may still answer.
      auto other = Order(hosts.second, hosts.first);
      if (other.ok()) {
        pair.hosts = {hosts.second, hosts.first};
        facts = std::move(other);
      }
    }
    if (facts.ok()) {
      pair.facts = std::move(*facts);
    } else {
      pair.facts.target = facts_.hosts[hosts.second].target;
      pair.facts.failure = {facts.status().code() == Code::kExhausted ? "busy" : "test",
                            facts.status().message()};
    }
    const std::lock_guard lock(mutex_);
    facts_.pairs.push_back(std::move(pair));
    SayProgress();
  }

  /// What else a host did while it was tested looks like a slow path; it is rarely there twice.
  void TestAgain(const std::vector<HostPair>& pairs) {
    all_ += pairs.size();
    for (const auto& round : RoundsOf(pairs)) {
      if (Stopped()) return;
      ForEachInParallel(round.size(), kMostThreads, [&](size_t i) {
        const auto again = Order(round[i].first, round[i].second);
        const std::lock_guard lock(mutex_);
        const auto pair = std::ranges::find(facts_.pairs, round[i], &ClusterPair::hosts);
        if (again.ok() && pair != facts_.pairs.end()) KeepBetter(pair->facts, *again);
        SayProgress();
      });
    }
  }

  void SayProgress() {
    ++done_;
    if (plan_.on_progress) plan_.on_progress(done_, all_);
  }

  Result<PeerFacts> Order(size_t tester, size_t tested) {
    Caller& caller = *callers_[tester];
    const Duration patience = kOrder + FromSeconds(kParts * plan_.test.seconds);
    WC_ASSIGN_OR_RETURN(
        const Ordered ordered,
        caller.Ask<Ordered>(AskOrder{.target = plan_.targets[tested], .plan = plan_.test}, patience));
    std::string report;
    while (report.size() < ordered.bytes) {
      WC_ASSIGN_OR_RETURN(const ReportPiece piece,
                          caller.Ask<ReportPiece>(AskPiece{.from = report.size()}, kHostAnswer));
      if (piece.text.empty())
        return Error(Code::kProtocol, "the report of the test from ", plan_.targets[tester],
                     " ends early; use the same weightcast on all hosts");
      report += piece.text;
    }
    return DecodeFacts(report);
  }

  const ClusterPlan& plan_;
  const TestMeans& means_;
  std::vector<std::unique_ptr<Caller>> callers_;  ///< Null: the host does not take part.
  size_t all_ = 0;                                ///< Tests, with those made again.
  std::mutex mutex_;                              ///< Guards the rest.
  size_t done_ = 0;
  ClusterFacts facts_;
};

}  // namespace

ClusterFacts RunCluster(const ClusterPlan& plan, const TestMeans& means) {
  return Cluster(plan, means).Run();
}

}  // namespace weightcast::peertest
