#include "peertest/check_peer.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "peertest/check_transport.h"
#include "peertest/units.h"

namespace weightcast::peertest {
namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::Level;

constexpr double kClockWarn = 5;  ///< Seconds, as of one machine.

std::string Host(const HostReport& report) { return StrCat(report.host, " (", report.address, ")"); }

void CheckFailure(const PeerFacts& facts, Findings& findings) {
  const std::string& stage = facts.failure.stage;
  const std::string host = facts.target.substr(0, facts.target.rfind(':'));
  Finding finding{.check = stage, .subject = facts.target, .evidence = facts.failure.text};
  if (stage == "token") {
    finding.text = "The two hosts have different tokens.";
    finding.remedy = "export WEIGHTCAST_TOKEN_FILE=FILE  # the same on both; then start --serve again there";
  } else if (stage == "version") {
    finding.text = "The other side is not a `weightcast doctor --serve` of this version.";
    finding.remedy = "weightcast --version  # on both hosts: install one release on both";
  } else if (stage == "busy") {
    finding.text = "The other host is in another test, so nothing was measured.";
    finding.remedy = StrCat("sleep 30; weightcast doctor --peer ", facts.target);
  } else if (stage == "reach") {
    finding.check = "connection";
    finding.text = "The other host is not reached.";
    finding.remedy = StrCat("ip route get ", host,
                            "; ip -brief address  # there: weightcast doctor --serve; nft list ruleset");
  } else {
    finding.text = StrCat("The test broke off: ", facts.failure.text, ".");
    finding.remedy = StrCat("weightcast doctor --peer ", facts.target, "  # and look at what --serve prints");
  }
  findings.Fail(std::move(finding));
}

void CheckVersions(const PeerFacts& facts, Findings& findings) {
  const std::string evidence =
      StrCat("weightcast ", facts.here.weightcast, " (wire ", facts.here.wire, ") here, ",
             facts.there.weightcast, " (wire ", facts.there.wire, ") there");
  Finding finding{.check = "version",
                  .subject = facts.there.host,
                  .text = StrCat("Both hosts have weightcast ", facts.here.weightcast, "."),
                  .evidence = evidence,
                  .remedy = "weightcast --version  # on both hosts: install one release on both"};
  if (facts.here.wire != facts.there.wire) {
    finding.text = "The hosts have versions of weightcast that do not understand each other.";
    findings.Fail(std::move(finding));
  } else if (facts.here.weightcast != facts.there.weightcast) {
    finding.text =
        StrCat("weightcast is ", facts.here.weightcast, " here and ", facts.there.weightcast, " there.");
    findings.Warn(std::move(finding));
  } else {
    findings.Ok(std::move(finding));
  }
}

void CheckNames(const PeerFacts& facts, Findings& findings) {
  if (facts.here.address == facts.there.address) return;  // One host.
  if (facts.here.host != facts.there.host)
    return findings.Ok({.check = "name",
                        .text = StrCat("The hosts have names of their own: ", facts.here.host, " and ",
                                       facts.there.host, ".")});
  findings.Warn({.check = "name",
                 .subject = facts.here.host,
                 .text = StrCat("Two hosts are called ", facts.here.host,
                                ". Launchers and libraries that group ranks by host name mix them up."),
                 .evidence = StrCat(Host(facts.here), ", ", Host(facts.there)),
                 .remedy = "hostnamectl set-hostname NAME  # one of its own for each host"});
}

void CheckClock(const PeerFacts& facts, Findings& findings) {
  if (facts.clock_within < 0) return;
  const double off = std::abs(facts.clock_ahead);
  Finding finding{
      .check = "clock",
      .subject = facts.there.host,
      .text = StrCat("Its clock is ", TimeText(off), facts.clock_ahead < 0 ? " behind" : " ahead of",
                     " this one, give or take ", TimeText(facts.clock_within), "."),
      .evidence = "its clock in an answer, and half of the round trip"};
  if (off <= kClockWarn + facts.clock_within) return findings.Ok(std::move(finding));
  finding.remedy = "timedatectl set-ntp true; timedatectl timesync-status  # or: chronyc makestep";
  findings.Warn(std::move(finding));
}

void CheckPorts(const PeerFacts& facts, Findings& findings) {
  const Ports& ports = facts.ports;
  const auto failed = static_cast<int64_t>(ports.out.size());
  const auto failed_back = static_cast<int64_t>(ports.back.size());
  if (ports.tried_out + ports.tried_back == 0) return;
  Finding finding{.check = "data_ports", .subject = facts.there.host};
  if (failed + failed_back == 0) {
    finding.text = "Both hosts reach the data plane's TCP port of the other.";
    return findings.Ok(std::move(finding));
  }
  for (const auto* list : {&ports.out, &ports.back})
    for (const std::string& one : *list)
      finding.evidence += StrCat(finding.evidence.empty() ? "" : "; ", one);
  finding.remedy =
      "nft list ruleset  # then e.g. WEIGHTCAST_PORT_RANGE=29800-29899 on all hosts, and open TCP and UDP "
      "29800-29899";
  const bool out = failed == ports.tried_out;
  const bool back = failed_back == ports.tried_back;
  if (out && back) {
    finding.text = "Neither host reaches the data plane's TCP port of the other: weights cannot be moved.";
    return findings.Fail(std::move(finding));
  }
  finding.text = StrCat("The data plane's TCP port is closed on the way ", out ? "to " : "back from ",
                        Host(facts.there), ". Connections are made the other way only.");
  findings.Warn(std::move(finding));
}

void CheckMtu(const PeerFacts& facts, Findings& findings) {
  const PathMtu& mtu = facts.mtu;
  const HostReport& here = facts.here;
  const HostReport& there = facts.there;
  Finding finding{.check = "mtu", .subject = facts.there.host};
  if (!mtu.error.empty()) {
    finding.text = StrCat("The path MTU is not known: ", mtu.error, ".");
    return findings.NotApplicable(std::move(finding));
  }
  finding.evidence = StrCat("MTU ", here.mtu, " on ", here.interface, " here, ", there.mtu, " on ",
                            there.interface, " there; packets that may not be fragmented pass up to ",
                            mtu.out, " bytes there, ", mtu.back, " back");
  const int64_t passes = std::min(mtu.out, mtu.back);
  const bool known = here.mtu > 0 && there.mtu > 0;
  const int64_t ends = known ? std::min(here.mtu, there.mtu) : int64_t{1500};
  constexpr int64_t kMostPacket = 65'535;  // Loopback has an MTU that no packet has.
  const bool whole = passes >= std::min(ends, kMostPacket);
  if (whole && (!known || here.mtu == there.mtu)) {
    finding.text = StrCat("Packets of ", passes, " bytes pass both ways, as the interfaces say.");
    findings.Ok(std::move(finding));
  } else if (whole) {
    const bool mine = here.mtu > there.mtu;
    const HostReport& larger = mine ? here : there;
    finding.text = StrCat("The MTU differs: ", here.mtu, " on ", here.interface, " of ", here.host, ", ",
                          there.mtu, " on ", there.interface, " of ", there.host,
                          ". Larger packets vanish; TCP avoids them, UDP and RDMA do not.");
    finding.remedy = StrCat("ip link set dev ", larger.interface, " mtu ", ends, "  # on ", larger.host,
                            "; or the larger one on the other host and every switch between");
    findings.Warn(std::move(finding));
  } else if (mtu.announced) {
    finding.text =
        StrCat("A router on the way takes packets of ", passes, " bytes only, and says so. TCP adapts.");
    finding.remedy = StrCat("tracepath -n ", there.address);
    findings.Warn(std::move(finding));
  } else {
    finding.text = StrCat("Packets above ", passes, " bytes vanish on the way, though both interfaces allow ",
                          ends, ". Connections then hang at their first large message.");
    finding.remedy = StrCat("ip link set dev ", here.interface, " mtu ", passes, "  # on both hosts (",
                            there.interface, " on ", there.host, "); or raise it on every switch between");
    findings.Fail(std::move(finding));
  }
}

}  // namespace

std::vector<Finding> CheckPeer(const PeerFacts& facts) {
  Findings findings("reach");
  if (!facts.failure.stage.empty()) CheckFailure(facts, findings);
  if (!facts.there.instance.empty()) {
    if (facts.failure.stage.empty())
      findings.Ok({.check = "connection",
                   .subject = facts.there.host,
                   .text = StrCat(Host(facts.there), " answers after ", TimeText(facts.connect_seconds),
                                  ", and both have the same token.")});
    CheckVersions(facts, findings);
    CheckNames(facts, findings);
    CheckClock(facts, findings);
  }
  if (facts.transports.empty()) return findings.Take();
  findings.Begin("path");
  CheckMtu(facts, findings);
  CheckPorts(facts, findings);
  for (const TransportFacts& transport : facts.transports) CheckTransport(facts, transport, findings);
  CheckClasses(facts, findings);
  return findings.Take();
}

}  // namespace weightcast::peertest
