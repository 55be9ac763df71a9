#include <algorithm>
#include <cmath>

#include "base/split_list.h"
#include "base/strings.h"
#include "doctor/checks.h"

namespace weightcast::doctor {
namespace {

constexpr double kClockWarn = 5;
/// What tickets, certificates and signed URLs commonly forgive.
constexpr double kClockFail = 300;

std::vector<std::string> InterfaceNames(const Facts& facts) {
  std::vector<std::string> names;
  for (const Interface& one : facts.host.interfaces) names.push_back(one.name);
  return names;
}

void CheckName(const Facts& facts, Findings& findings) {
  const std::string& name = facts.host.name;
  const std::string interface = MainInterface(facts);
  if (facts.missed.contains("names")) return;
  if (interface.empty())
    return findings.NotApplicable(
        {.check = "name", .text = "No interface reaches other hosts, so the name is of no matter."});
  const std::string evidence =
      StrCat("getaddrinfo(", name,
             "): ", facts.names.error.empty() ? Join(facts.names.addresses, ", ") : facts.names.error);
  const bool only_loopback = std::ranges::all_of(facts.names.addresses, IsLoopback);
  const std::string chosen = Variable(facts, "GLOO_SOCKET_IFNAME");
  if (!only_loopback || (!chosen.empty() && !facts.names.addresses.empty()))
    return findings.Ok(
        {.check = "name",
         .text = StrCat("Host name ", name, " resolves to ", Join(facts.names.addresses, ", "), "."),
         .evidence = evidence});
  const std::string text =
      facts.names.addresses.empty()
          ? StrCat("Host name ", name,
                   " does not resolve. gloo and torch then use loopback, and other hosts cannot connect.")
          : StrCat("Host name ", name, " resolves to ", Join(facts.names.addresses, ", "),
                   " only. gloo and torch give this address to other hosts, which cannot connect.");
  findings.Warn({.check = "name",
                 .text = text,
                 .evidence = evidence,
                 .remedy = StrCat("export GLOO_SOCKET_IFNAME=", interface, "  # or give ", name,
                                  " the address of ", interface, " in /etc/hosts")});
}

void CheckInterfaces(const Facts& facts, Findings& findings) {
  std::vector<std::string> usable;
  for (const Interface& one : facts.host.interfaces) {
    if (one.state == "down" || one.addresses.empty() || std::ranges::all_of(one.addresses, IsLoopback))
      continue;
    usable.push_back(
        StrCat(one.name, " (", Join(one.addresses, ", "), one.mtu < 0 ? "" : StrCat(", MTU ", one.mtu), ")"));
  }
  if (usable.empty())
    return findings.NotApplicable(
        {.check = "interfaces",
         .text = "No interface but loopback is up with an address: jobs stay on this host.",
         .evidence = "/sys/class/net, getifaddrs"});
  findings.Ok({.check = "interfaces",
               .text = StrCat("Up with an address: ", Join(usable, ", "), "."),
               .evidence = "/sys/class/net, getifaddrs"});
}

/// The interfaces that one word of a list names. NCCL takes prefixes, unless the list begins with "=".
std::vector<const Interface*> Named(const Facts& facts, std::string_view word, bool prefix) {
  std::vector<const Interface*> found;
  for (const Interface& one : facts.host.interfaces) {
    if (one.name == word || (prefix && one.name.starts_with(word))) found.push_back(&one);
  }
  return found;
}

void CheckNamedInterfaces(const Facts& facts, const std::string& variable, const std::string& value,
                          bool prefix, Findings& findings) {
  if (value.empty() || value.starts_with('^')) return;
  const bool exact = value.starts_with('=');
  for (const std::string_view word : SplitList(std::string_view(value).substr(exact ? 1 : 0))) {
    const auto found = Named(facts, word, prefix && !exact);
    const bool usable = std::ranges::any_of(
        found, [](const Interface* one) { return one->state != "down" && !one->addresses.empty(); });
    const std::string interface = MainInterface(facts);
    Finding finding{
        .check = "named_interface",
        .subject = variable,
        .evidence = StrCat(variable, "=", value, "; interfaces: ", Join(InterfaceNames(facts), ", "))};
    if (usable) {
      finding.text = StrCat(variable, " names ", word, ", which is up.");
      findings.Ok(finding);
      continue;
    }
    finding.text = found.empty() ? StrCat(variable, " names ", word, ", and there is no such interface.")
                                 : StrCat(variable, " names ", word, ", which is down or has no address.");
    finding.remedy =
        interface.empty() ? StrCat("unset ", variable) : StrCat("export ", variable, "=", interface);
    findings.Fail(finding);
  }
}

void CheckNamedDevices(const Facts& facts, const std::string& variable, const std::string& value,
                       Findings& findings) {
  if (value.empty() || value.starts_with('^') || facts.missed.contains("rdma")) return;
  const bool exact = value.starts_with('=');
  const bool nccl = variable == "NCCL_IB_HCA";
  for (const std::string_view word : SplitList(std::string_view(value).substr(exact ? 1 : 0))) {
    const std::string_view device = word.substr(0, word.find(':'));
    const bool found = std::ranges::any_of(facts.rdma.devices, [&](const RdmaDevice& one) {
      return one.name == device || (nccl && !exact && one.name.starts_with(device));
    });
    if (found) continue;
    std::vector<std::string> names;
    for (const RdmaDevice& one : facts.rdma.devices) names.push_back(one.name);
    findings.Fail(
        {.check = "named_device",
         .subject = variable,
         .text = StrCat(variable, " names ", word, ", and there is no such RDMA device."),
         .evidence = StrCat(variable, "=", value, "; devices: ", names.empty() ? "none" : Join(names, ", ")),
         .remedy =
             names.empty() ? StrCat("unset ", variable) : StrCat("export ", variable, "=", names.front())});
  }
}

void CheckBind(const Facts& facts, Findings& findings) {
  const std::string bind = Setting(facts, "bind");
  if (bind.empty() || bind == "0.0.0.0" || bind == "::" || IsLoopback(bind)) return;
  const bool own = std::ranges::any_of(facts.host.interfaces, [&](const Interface& one) {
    return std::ranges::find(one.addresses, bind) != one.addresses.end();
  });
  if (own)
    return findings.Ok(
        {.check = "bind", .text = StrCat("The setting bind, ", bind, ", is an address of this host.")});
  findings.Fail(
      {.check = "bind",
       .subject = bind,
       .text = StrCat("The setting bind is ", bind, ", and no interface of this host has that address."),
       .evidence = "getifaddrs",
       .remedy = "unset WEIGHTCAST_BIND; ip -brief address"});
}

void CheckRoute(const Facts& facts, Findings& findings) {
  const RouteFacts& route = facts.route;
  if (facts.missed.contains("route")) return;
  if (route.target.empty())
    return findings.NotApplicable(
        {.check = "route", .text = "No --controller was given, so no route was looked for."});
  if (!route.error.empty())
    return findings.Fail({.check = "route",
                          .subject = route.target,
                          .text = StrCat("There is no route to the controller ", route.target,
                                         ". Its subnet is none of this host's, and no gateway leads there."),
                          .evidence = route.error,
                          .remedy = "ip route; ip -brief address; getent hosts " +
                                    route.target.substr(0, route.target.rfind(':'))});
  findings.Ok({.check = "route",
               .subject = route.target,
               .text = StrCat("The controller is reached from ", route.source,
                              route.interface.empty() ? "" : StrCat(" on ", route.interface), "."),
               .evidence = "connect of a datagram socket"});
}

void CheckClock(const Facts& facts, Findings& findings) {
  const ClockFacts& clock = facts.clock;
  if (facts.missed.contains("clock")) return;
  const std::string kernel = clock.synchronised ? "adjtimex: synchronised" : "adjtimex: not synchronised";
  if (clock.reference.empty())
    return findings.NotApplicable({.check = "clock",
                                   .text = "No --clock was given, so the clock was not compared.",
                                   .evidence = kernel});
  if (!clock.error.empty())
    return findings.NotApplicable({.check = "clock",
                                   .subject = clock.reference,
                                   .text = StrCat("The clock could not be compared: ", clock.error, "."),
                                   .evidence = kernel});
  const double off = std::abs(clock.ahead_seconds);
  Finding finding{
      .check = "clock",
      .subject = clock.reference,
      .text = StrCat("This clock is ", std::round(off), " s ",
                     clock.ahead_seconds < 0 ? "behind" : "ahead of", " that of ", clock.reference, "."),
      .evidence = StrCat("Date of http://", clock.reference, "; ", kernel)};
  if (off <= kClockWarn) {
    finding.text = StrCat("This clock agrees with that of ", clock.reference, " within ", kClockWarn, " s.");
    return findings.Ok(finding);
  }
  finding.remedy = "timedatectl set-ntp true; timedatectl timesync-status  # or: chronyc makestep";
  findings.Add(off > kClockFail ? Level::kFail : Level::kWarn, finding);
}

}  // namespace

void CheckHost(const Facts& facts, Findings& findings) {
  if (!facts.missed.contains("host")) {
    CheckName(facts, findings);
    CheckInterfaces(facts, findings);
    for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"})
      CheckNamedInterfaces(facts, name, Variable(facts, name), name[0] == 'N', findings);
    CheckNamedInterfaces(facts, "WEIGHTCAST_INTERFACE", Setting(facts, "interface"), false, findings);
    CheckBind(facts, findings);
  }
  CheckNamedDevices(facts, "NCCL_IB_HCA", Variable(facts, "NCCL_IB_HCA"), findings);
  CheckNamedDevices(facts, "WEIGHTCAST_NICS", Setting(facts, "nics"), findings);
  CheckRoute(facts, findings);
  CheckClock(facts, findings);
}

}  // namespace weightcast::doctor
