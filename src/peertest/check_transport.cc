#include "peertest/check_transport.h"

#include <algorithm>
#include <utility>

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
  return Join(rates, ", ", [](const Rate& one) {
    return StrCat(GbitText(one.gbit), " at ", HumanBytes(static_cast<double>(one.bytes)));
  });
}

/// One whose RDMA is broken, or missing while the other host has it, costs speed.
void CheckSkipped(const PeerFacts& facts, const TransportFacts& transport, Findings& findings) {
  for (const auto& [one, other] :
       {std::pair(&facts.here, &facts.there), std::pair(&facts.there, &facts.here)}) {
    const bool missing = one->rdma == kNoRdmaDevice && other->rdma.empty();
    if (one->rdma_remedy.empty() && !missing) continue;
    const std::string fix = missing ? "modprobe mlx5_ib" : one->rdma_remedy;
    return findings.Warn(
        {.check = "connection",
         .subject = one->host,
         .text = StrCat("RDMA is not used: ", one->host, " has ", one->rdma,
                        missing ? StrCat(", and ", other->host, " has one.") : "."),
         .evidence = StrCat("/sys/class/infiniband of ", one->host),
         .remedy = StrCat(fix, "  # on ", one->host, missing ? ", or the RDMA module of its NIC" : "",
                          "; `weightcast doctor` there tells more")});
  }
  findings.NotApplicable({.check = "connection", .text = StrCat("Not tried: ", transport.skipped, ".")});
}

/// Whether queue pairs had to send so much again that packets must have been lost.
bool IsLossy(const PortCount& port) {
  constexpr int64_t kFewestRepeats = 3;
  constexpr double kMostPart = 1e-3;  // A few time-outs of busy hosts are below it.
  return port.repeats >= kFewestRepeats &&
         static_cast<double>(port.repeats) > kMostPart * static_cast<double>(port.packets);
}

bool CheckLoss(const PeerFacts& facts, const TransportFacts& transport, Findings& findings) {
  std::string ports;
  for (const auto& [host, sent] :
       {std::pair(&facts.here, &transport.sent_here), std::pair(&facts.there, &transport.sent_there)}) {
    for (const PortCount& port : *sent) {
      if (!IsLossy(port)) continue;
      ports += StrCat(ports.empty() ? "" : "; ", port.name, " of ", host->host, " sent again ", port.repeats,
                      " times in ", port.packets, " packets");
    }
  }
  if (ports.empty()) return false;
  const bool failed = !transport.error.empty();
  findings.Add(
      failed ? Level::kFail : Level::kWarn,
      {.check = "loss",
       .subject = facts.there.host,
       .text = StrCat("Packets of RDMA are lost on the way: queue pairs time out and send them again",
                      failed ? ", until transfers fail." : "."),
       .evidence = failed ? StrCat(ports, "; ", transport.error) : ports,
       .remedy =
           "weightcast watch  # on both hosts: drops and pause frames; ethtool -S IFACE for bad cables; "
           "mlnx_qos -i IFACE --trust dscp --pfc 0,0,0,1,0,0,0,0, and the same on the switches"});
  return true;
}

/// Only devices alone are judged: what processors do to tcp looks like jitter, too.
void CheckDeviceLatency(const PeerFacts& facts, const TransportFacts& transport, Findings& findings) {
  constexpr double kLeast = 5e-4;  // Seconds: less may be the processors of busy hosts.
  constexpr double kMostPart = 0.25;
  const Latency& latency = transport.device;
  Finding finding{.check = "device_latency", .subject = facts.there.host};
  if (latency.samples == 0) {
    finding.text = "The latency of the devices alone was not measured.";
    finding.evidence = transport.device_error;
    if (!transport.device_error.empty()) findings.NotApplicable(std::move(finding));
    return;
  }
  finding.text = StrCat("One way between the devices alone: ", LatencyText(latency), ".");
  finding.evidence =
      StrCat(latency.samples, " exchanges of 8 bytes; half of them differ from the one before by ",
             TimeText(latency.jitter_p50), " or more");
  if (latency.jitter_p50 < kLeast || latency.jitter_p50 < kMostPart * latency.p50)
    return findings.Ok(std::move(finding));
  finding.text = StrCat("Latency jitters: from one exchange to the next it changes by ",
                        TimeText(latency.jitter_p50), ". ", finding.text);
  finding.remedy =
      "tc -s qdisc show; weightcast watch  # on both hosts: queues, pause frames; then ethtool -c IFACE "
      "(interrupt moderation), cpupower idle-info (sleep states)";
  findings.Warn(std::move(finding));
}

Level LevelOf(double part) {
  if (part < kSlowFail) return Level::kFail;
  return part < kSlowWarn ? Level::kWarn : Level::kOk;
}

/// `lossy`: that is named already, and slows every direction by chance.
void CheckBandwidth(const PeerFacts& facts, const TransportFacts& transport, bool lossy, Findings& findings) {
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
  if (lossy) {
    finding.text += ". Not judged, as packets are lost.";
    finding.remedy.clear();
    return findings.NotApplicable(std::move(finding));
  }
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

void CheckTransport(const PeerFacts& facts, const TransportFacts& transport, Findings& findings) {
  findings.Begin(transport.name);
  const bool lossy = CheckLoss(facts, transport, findings);
  if (!transport.skipped.empty()) {
    CheckSkipped(facts, transport, findings);
  } else if (!transport.error.empty() && !lossy) {
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
  } else if (!transport.connection.empty()) {
    findings.Ok({.check = "connection", .text = StrCat("Connected: ", transport.connection, ".")});
  }
  if (transport.latency.samples > 0)
    findings.Ok({.check = "latency",
                 .subject = facts.there.host,
                 .text = StrCat("One way of a small write: ", LatencyText(transport.latency), "."),
                 .evidence = StrCat(transport.latency.samples, " exchanges")});
  CheckDeviceLatency(facts, transport, findings);
  if (transport.error.empty()) CheckBandwidth(facts, transport, lossy, findings);
}

namespace {

/// Behind a queue that load has built.
bool Waits(const Latency& loaded, const Latency& idle) {
  constexpr double kQueue = 1e-3;  // Seconds: less may be the processors.
  return loaded.samples == 0 || loaded.p50 >= 2 * idle.p50 + kQueue;
}

/// Where a class has a queue of its own: whether load of this class, which tcp makes, fills another one.
bool IsStripped(const ClassFacts& classes) {
  return !Waits(classes.class_marked, classes.class_idle) && Waits(classes.plain_marked, classes.plain_idle);
}

}  // namespace

void CheckClasses(const PeerFacts& facts, Findings& findings) {
  findings.Begin("classes");
  const ClassFacts& classes = facts.classes;
  const std::string name = StrCat("DSCP ", classes.traffic_class >> 2);
  Finding finding{.check = "priority", .subject = facts.there.host};
  if (!classes.error.empty()) {
    finding.text = StrCat("Traffic classes were not compared: ", classes.error, ".");
    return findings.NotApplicable(std::move(finding));
  }
  finding.evidence =
      StrCat("idle: class 0 ", LatencyText(classes.plain_idle), "; ", name, " ",
             LatencyText(classes.class_idle), "; under load: class 0 ", LatencyText(classes.plain_loaded),
             " (", classes.plain_loaded.lost, " lost); ", name, " ", LatencyText(classes.class_loaded), " (",
             classes.class_loaded.lost, " lost); under load of ", name, ": class 0 ",
             LatencyText(classes.plain_marked), "; ", name, " ", LatencyText(classes.class_marked));
  const double plain = classes.plain_loaded.p50;
  const double chosen = classes.class_loaded.p50;
  const std::string both =
      StrCat(" Round trip under load: ", TimeText(plain), " without, ", TimeText(chosen), " with (p50); p99 ",
             TimeText(classes.plain_loaded.p99), " and ", TimeText(classes.class_loaded.p99), ".");
  if (classes.plain_loaded.samples == 0 || classes.class_loaded.samples == 0) {
    finding.text = "No small packet came back under load: queues on the way drop them.";
    finding.remedy = "weightcast watch  # on both hosts: drops and pause frames";
    findings.Warn(std::move(finding));
  } else if (!Waits(classes.plain_loaded, classes.plain_idle)) {
    finding.text = StrCat("Load builds no queue, so ", name, " has nothing to overtake.", both);
    findings.Ok(std::move(finding));
  } else if (chosen < plain / 2 && IsStripped(classes)) {
    finding.text =
        StrCat("Packets of UDP keep ", name, " on the way, and those of tcp lose it: tcp that has ", name,
               " waits with class 0.", both);
    finding.remedy = "nft list ruleset; iptables -t mangle -S  # on both hosts: rules that set the DSCP";
    findings.Warn(std::move(finding));
  } else if (chosen < plain / 2) {
    finding.text = StrCat("Priority holds: packets of ", name, " overtake those of class 0.", both);
    findings.Ok(std::move(finding));
  } else if (classes.chosen) {
    finding.text =
        StrCat("Packets of ", name, ", which setting traffic_class asks for, wait like all others.", both);
    finding.remedy = "tc -s qdisc show; mlnx_qos -i IFACE  # and the switch's DSCP map: docs/operations.md";
    findings.Warn(std::move(finding));
  } else {
    finding.text = StrCat("Packets of ", name, " wait like all others: no priority is set up for it.", both);
    findings.NotApplicable(std::move(finding));
  }
}

}  // namespace weightcast::peertest
