#include "peertest/check_transport.h"

#include <algorithm>

#include "base/strings.h"
#include "peertest/check_peer.h"
#include "peertest/units.h"

namespace weightcast::peertest {
namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::Level;

std::string LatencyText(const Latency& latency) {
  return StrCat("p50 ", TimeText(latency.p50), ", p99 ", TimeText(latency.p99), ", max ",
                TimeText(latency.most), ", jitter ", TimeText(latency.jitter));
}

std::string RatesText(const std::vector<Rate>& rates) {
  std::string text;
  for (const Rate& one : rates)
    text += StrCat(text.empty() ? "" : ", ", GbitText(one.gbit), " at ",
                   HumanBytes(static_cast<double>(one.bytes)));
  return text;
}

Level LevelOf(double part) {
  if (part < kSlowFail) return Level::kFail;
  return part < kSlowWarn ? Level::kWarn : Level::kOk;
}

void CheckBandwidth(const PeerFacts& facts, const TransportFacts& transport, Findings& findings) {
  const double out = BestGbit(transport.out);
  const double back = BestGbit(transport.back);
  if (out <= 0 || back <= 0) return;
  const double link = LinkGbit(facts.here, facts.there);
  const double slower = std::min(out, back);
  const double faster = std::max(out, back);
  const HostReport& from = out < back ? facts.here : facts.there;
  Finding finding{
      .check = "bandwidth",
      .subject = facts.there.host,
      .text = StrCat(GbitText(out), " there, ", GbitText(back), " back"),
      .evidence = StrCat("there: ", RatesText(transport.out), "; back: ", RatesText(transport.back)),
      .remedy = StrCat("weightcast watch  # on ", facts.here.host, " and ", facts.there.host,
                       "; ethtool -S and ethtool of both interfaces; weightcast doctor on both")};
  if (transport.both_out > 0)
    finding.evidence += StrCat("; both at once: ", GbitText(transport.both_out), " there, ",
                               GbitText(transport.both_back), " back");
  const double wanted = transport.name == "tcp" ? std::min(link, kTcpEnough) : link;
  const Level by_link = link > 0 ? LevelOf(slower / wanted) : Level::kOk;
  const Level by_other = LevelOf(slower / faster);
  if (link > 0) finding.text += StrCat("; the link has ", GbitText(link));
  finding.text += ".";
  if (by_other >= Level::kWarn)
    finding.text +=
        StrCat(" What leaves ", from.host, " has ", PercentText(slower / faster), " of the other direction.");
  if (by_link == Level::kOk && by_other == Level::kOk) finding.remedy.clear();
  findings.Add(std::max(by_link, by_other), std::move(finding));
}

}  // namespace

std::vector<Finding> CheckTransport(const PeerFacts& facts, const TransportFacts& transport) {
  Findings findings(transport.name);
  if (!transport.skipped.empty()) {
    findings.NotApplicable({.check = "connection", .text = StrCat("Not tried: ", transport.skipped, ".")});
  } else if (!transport.error.empty()) {
    const bool vanish = transport.latency.samples > 0;
    findings.Fail(
        {.check = vanish ? "bandwidth" : "connection",
         .subject = facts.there.host,
         .text = vanish ? "Small messages pass, and large ones do not."
                        : StrCat("There is no connection over ", transport.name, "."),
         .evidence = transport.error,
         .remedy = vanish
                       ? StrCat("tracepath -n ", facts.there.address, "  # and see path.mtu")
                       : "WEIGHTCAST_LOG_LEVEL=debug weightcast doctor --serve  # and see path.data_ports"});
  } else {
    findings.Ok({.check = "connection", .text = StrCat("Connected: ", transport.connection, ".")});
  }
  if (transport.latency.samples > 0)
    findings.Ok({.check = "latency",
                 .subject = facts.there.host,
                 .text = StrCat("One way of a small write: ", LatencyText(transport.latency), "."),
                 .evidence = StrCat(transport.latency.samples, " exchanges")});
  if (transport.error.empty()) CheckBandwidth(facts, transport, findings);
  return findings.Take();
}

std::vector<Finding> CheckClasses(const PeerFacts& facts) {
  Findings findings("classes");
  const ClassFacts& classes = facts.classes;
  const std::string name = StrCat("DSCP ", classes.traffic_class >> 2);
  Finding finding{.check = "priority", .subject = facts.there.host};
  if (!classes.error.empty()) {
    finding.text = StrCat("Traffic classes were not compared: ", classes.error, ".");
    findings.NotApplicable(std::move(finding));
    return findings.Take();
  }
  finding.evidence = StrCat(
      "idle: class 0 ", LatencyText(classes.plain_idle), "; ", name, " ", LatencyText(classes.class_idle),
      "; under load: class 0 ", LatencyText(classes.plain_loaded), " (", classes.plain_loaded.lost,
      " lost); ", name, " ", LatencyText(classes.class_loaded), " (", classes.class_loaded.lost, " lost)");
  const double plain = classes.plain_loaded.p50;
  const double chosen = classes.class_loaded.p50;
  constexpr double kQueue = 1e-3;  // Seconds: less may be the processors.
  const std::string both =
      StrCat(" Round trip under load: ", TimeText(plain), " without, ", TimeText(chosen), " with (p50); p99 ",
             TimeText(classes.plain_loaded.p99), " and ", TimeText(classes.class_loaded.p99), ".");
  if (classes.plain_loaded.samples == 0 || classes.class_loaded.samples == 0) {
    finding.text = "No small packet came back under load: queues on the way drop them.";
    finding.remedy = "weightcast watch  # on both hosts: drops and pause frames";
    findings.Warn(std::move(finding));
  } else if (plain < 2 * classes.plain_idle.p50 + kQueue) {
    finding.text = StrCat("Load builds no queue, so ", name, " has nothing to overtake.", both);
    findings.Ok(std::move(finding));
  } else if (chosen < plain / 2) {
    finding.text = StrCat("Priority holds: packets of ", name, " overtake those of class 0.", both);
    findings.Ok(std::move(finding));
  } else if (classes.chosen) {
    finding.text = StrCat("Packets of ", name,
                          ", which the setting traffic_class asks for, wait like all others.", both);
    finding.remedy = "tc -s qdisc show; mlnx_qos -i IFACE  # and the switch's DSCP map: docs/operations.md";
    findings.Warn(std::move(finding));
  } else {
    finding.text = StrCat("Packets of ", name, " wait like all others: no priority is set up for it.", both);
    findings.NotApplicable(std::move(finding));
  }
  return findings.Take();
}

}  // namespace weightcast::peertest
