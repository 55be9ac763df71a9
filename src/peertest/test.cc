#include "peertest/test.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/strings.h"
#include "base/traffic_class.h"
#include "base/wall_clock.h"
#include "peertest/caller.h"
#include "peertest/describe_host.h"
#include "peertest/echo_prober.h"
#include "peertest/measure.h"
#include "peertest/target.h"

namespace weightcast::peertest {
namespace {

constexpr int kClockTries = 5;
/// DSCP 26, which switches for RoCE are commonly set up for.
constexpr int64_t kUsualClass = 26 << 2;

class Test {
 public:
  Test(const std::string& target, const TestPlan& plan, const TestMeans& means) : plan_(plan), means_(means) {
    facts_.target = target;
  }

  PeerFacts Run() {
    if (Reach()) {
      CompareClocks();
      if (Begin()) MeasureAll();
    }
    return std::move(facts_);
  }

 private:
  void Say(std::string_view step) const {
    if (means_.on_step) means_.on_step(step);
  }
  void Fail(std::string stage, std::string text) { facts_.failure = {std::move(stage), std::move(text)}; }

  /// The first of the target's addresses that answers.
  bool Reach() {
    Say("connecting");
    const auto place = ParseTarget(facts_.target);
    const auto addresses =
        place.ok() ? Resolve(place->host, place->port) : Result<std::vector<SocketAddress>>(place.status());
    if (!addresses.ok()) {
      Fail("reach", addresses.status().message());
      return false;
    }
    for (const SocketAddress& address : *addresses) {
      if (ReachAt(address)) return true;
      // What an address that answers says tells more than that another does not.
      if (facts_.failure.stage != "reach") break;
    }
    return false;
  }

  bool ReachAt(const SocketAddress& address) {
    const auto source = SourceTo(address);
    if (!source.ok()) {
      Fail("reach", source.status().message());
      return false;
    }
    const TimePoint begin = Clock::now();
    auto opened = Caller::Connect({.address = address.ToString(),
                                   .token = means_.token,
                                   .deadline = In(kConnectTime),
                                   .interrupted = means_.interrupted});
    if (opened.caller == nullptr) {
      Fail(opened.failure.stage, opened.failure.text);
      return false;
    }
    facts_.connect_seconds = Seconds(Clock::now() - begin);
    caller_ = std::move(opened.caller);
    here_ = *source;
    there_ = address;
    facts_.here = DescribeHost(here_.Host(), means_.settings);
    auto hello = caller_->Ask<Hello>(AskHello{.report = facts_.here, .peer = there_.Host()}, kAnswerTime);
    if (!hello.ok()) {
      Fail(hello.status().code() == Code::kProtocol ? "version" : "test", hello.status().message());
      return false;
    }
    facts_.there = hello->report;
    facts_.failure = {};
    return true;
  }

  /// By the exchange that took the least time.
  void CompareClocks() {
    for (int i = 0; i < kClockTries; ++i) {
      const TimePoint begin = Clock::now();
      const double before = UnixNow();
      const auto time = caller_->Ask<Time>(AskTime{}, kAnswerTime);
      if (!time.ok()) return;
      const double half = Seconds(Clock::now() - begin) / 2;
      if (facts_.clock_within >= 0 && half >= facts_.clock_within) continue;
      facts_.clock_within = half;
      facts_.clock_ahead = time->unix_seconds - (before + half);
    }
  }

  bool Begin() {
    auto echo = caller_->Ask<Echo>(AskBegin{.address = there_.Host()}, kAnswerTime);
    if (!echo.ok()) {
      Fail(echo.status().code() == Code::kExhausted ? "busy" : "test", echo.status().message());
      return false;
    }
    echo_ = std::move(*echo);
    return true;
  }

  void MeasureAll() {
    Say("path MTU");
    auto prober = OpenProber();
    if (prober.ok()) {
      facts_.mtu = (*prober)->FindPathMtu(facts_.here.mtu, facts_.there.mtu, Interrupted());
    } else {
      facts_.mtu.error = prober.status().message();
    }
    MeasureTcp(prober.ok() ? prober->get() : nullptr);
    MeasureVerbs();
    (void)caller_->Ask<Done>(AskEnd{}, kAnswerTime);
    if (means_.interrupted && means_.interrupted())
      Fail("test", "the test was stopped by a signal to this process");
  }

  [[nodiscard]] std::function<bool()> Interrupted() const {
    return means_.interrupted ? means_.interrupted : [] { return false; };
  }

  Result<std::unique_ptr<EchoProber>> OpenProber() {
    if (!echo_.error.empty()) return Error(Code::kUnavailable, "the other host: ", echo_.error);
    WC_ASSIGN_OR_RETURN(const PortRange ports, ParsePortRange(means_.settings.port_range));
    SocketAddress to = there_;
    to.set_port(static_cast<uint16_t>(echo_.port));
    return EchoProber::Open(here_, to, ports, echo_.key);
  }

  [[nodiscard]] Measurement NewMeasurement(std::string transport) {
    return Measurement({.transport = std::move(transport),
                        .here = here_.Host(),
                        .there = there_.Host(),
                        .plan = plan_,
                        .settings = means_.settings,
                        .interrupted = Interrupted()},
                       *caller_);
  }

  void MeasureTcp(EchoProber* prober) {
    Say("tcp");
    Measurement tcp = NewMeasurement("tcp");
    tcp.Run(&facts_.ports);
    ClassFacts& classes = facts_.classes;
    const auto chosen = ParseTrafficClass(means_.settings.traffic_class);
    classes.chosen = chosen.ok() && chosen->value_or(0) != 0;
    classes.traffic_class = classes.chosen ? **chosen : kUsualClass;
    if (!plan_.classes) {
      classes.error = "not part of this test";
    } else if (prober == nullptr || facts_.mtu.out == 0) {
      classes.error = "UDP packets do not come back";
    } else {
      Say("traffic classes");
      CompareClasses(tcp, *prober);
    }
    tcp.Close();
    facts_.transports.push_back(tcp.facts());
  }

  void CompareClasses(Measurement& tcp, EchoProber& prober) {
    ClassFacts& classes = facts_.classes;
    const auto kind = static_cast<uint8_t>(classes.traffic_class);
    const auto compare = [&](double seconds) { return prober.Compare(kind, seconds, Interrupted()); };
    std::tie(classes.plain_idle, classes.class_idle) = compare(plan_.seconds);
    classes.error = tcp.WhileLoaded(
        0, [&] { std::tie(classes.plain_loaded, classes.class_loaded) = compare(2 * plan_.seconds); });
    if (!classes.error.empty()) return;
    classes.error = tcp.WhileLoaded(
        kind, [&] { std::tie(classes.plain_marked, classes.class_marked) = compare(2 * plan_.seconds); });
  }

  void MeasureVerbs() {
    TransportFacts verbs{.name = "verbs"};
    for (const HostReport* one : {&facts_.here, &facts_.there}) {
      if (!one->rdma.empty() && verbs.skipped.empty()) verbs.skipped = StrCat(one->host, " has ", one->rdma);
    }
    if (verbs.skipped.empty()) {
      Say("verbs");
      Measurement measured = NewMeasurement("verbs");
      measured.Run(nullptr);
      measured.Close();
      verbs = measured.facts();
    }
    facts_.transports.push_back(std::move(verbs));
  }

  const TestPlan plan_;
  const TestMeans& means_;
  PeerFacts facts_;
  std::unique_ptr<Caller> caller_;
  SocketAddress here_;
  SocketAddress there_;
  Echo echo_;
};

}  // namespace

PeerFacts RunTest(const std::string& target, const TestPlan& plan, const TestMeans& means) {
  return Test(target, plan, means).Run();
}

}  // namespace weightcast::peertest
