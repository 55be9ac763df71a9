#include <poll.h>
#include <sys/socket.h>
#include <sys/timex.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <sstream>

#include "base/socket.h"
#include "base/strings.h"
#include "base/wall_clock.h"
#include "doctor/gather.h"
#include "topology/files.h"

namespace weightcast::doctor {
namespace {

namespace fs = std::filesystem;
using topology::NamesIn;
using topology::ReadLine;

/// The interface of the IPv4 route to everything.
std::string DefaultInterface(const fs::path& file) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string interface;
    std::string destination;
    if (words >> interface >> destination && destination == "00000000") return interface;
  }
  return {};
}

std::string ContainerSign(const Sources& sources) {
  std::error_code error;
  for (const char* file : {".dockerenv", "run/.containerenv"}) {
    if (fs::exists(sources.root / file, error)) return StrCat("/", file);
  }
  for (const char* name : {"KUBERNETES_SERVICE_HOST", "container"}) {
    if (sources.environment.contains(name)) return StrCat("the variable ", name);
  }
  return {};
}

bool IsSecret(std::string_view name) {
  static constexpr std::array<std::string_view, 4> kSigns = {"TOKEN", "SECRET", "PASSWORD", "KEY"};
  if (name.ends_with("_FILE") || name == "WEIGHTCAST_PKEY" || name == "NCCL_IB_PKEY") return false;
  return std::ranges::any_of(
      kSigns, [&](std::string_view sign) { return name.find(sign) != std::string_view::npos; });
}

bool IsOfThisField(std::string_view name) {
  static constexpr std::array<std::string_view, 9> kPrefixes = {
      "NCCL_", "GLOO_", "WEIGHTCAST_", "UCX_", "TORCH_", "CUDA_", "NVIDIA_", "MASTER_", "TP_SOCKET_"};
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

/// "Date: Tue, 15 Nov 1994 08:12:31 GMT" as Unix seconds (RFC 9110, 5.6.7).
Result<double> DateOf(std::string_view head) {
  const size_t at = head.find("\r\nDate: ");
  std::tm parts{};
  if (at == std::string_view::npos ||
      strptime(std::string(head.substr(at + 8, 29)).c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts) == nullptr)
    return Status(Code::kProtocol, "the server sends no Date header; give --clock a web server that does");
  return static_cast<double>(timegm(&parts));
}

Result<double> AskDate(const std::string& reference, TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(reference));
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(place.host, place.port));
  WC_ASSIGN_OR_RETURN(const UniqueFd socket, Connect(addresses.front(), deadline));
  const std::string request = StrCat("HEAD / HTTP/1.1\r\nHost: ", reference, "\r\nConnection: close\r\n\r\n");
  if (const Status sent = SendAll(socket.get(), request, deadline); !sent.ok())
    return Error(sent.code(), "cannot ask the web server at ", reference, ": ", sent.message());
  std::string head;
  while (head.find("\r\n\r\n") == std::string::npos && head.size() < size_t{16} << 10) {
    std::array<char, 2048> part{};
    if (!WaitFor(socket.get(), POLLIN, deadline))
      return Status(Code::kTimedOut,
                    "the server gives no answer in time; check that it runs, or give --clock another");
    const ssize_t got = recv(socket.get(), part.data(), part.size(), 0);
    if (got <= 0) break;
    head.append(part.data(), static_cast<size_t>(got));
  }
  return DateOf(head);
}

/// The address that the kernel would send from; a datagram socket connects without a packet.
Result<SocketAddress> SourceTo(const SocketAddress& target) {
  const UniqueFd socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || connect(socket.get(), target.raw(), target.length()) != 0)
    return Status(Code::kUnavailable, ErrnoText(errno));
  return LocalAddressOf(socket.get());
}

}  // namespace

HostFacts GatherHost(const Sources& sources) {
  HostFacts facts;
  facts.name = sources.host_name;
  facts.kernel = sources.kernel;
  facts.container = ContainerSign(sources);
  const fs::path folder = sources.root / "sys/class/net";
  for (const std::string& name : NamesIn(folder)) {
    Interface one{.name = name, .state = ReadLine(folder / name / "operstate"), .addresses = {}};
    if (one.state.empty()) continue;  // bonding_masters is a file.
    one.mtu = ParseNumber<int64_t>(ReadLine(folder / name / "mtu")).value_or(kUnknown);
    one.mbit_per_second = ParseNumber<int64_t>(ReadLine(folder / name / "speed")).value_or(kUnknown);
    if (const auto found = sources.addresses.find(name); found != sources.addresses.end())
      one.addresses = found->second;
    facts.interfaces.push_back(std::move(one));
  }
  facts.default_interface = DefaultInterface(sources.root / "proc/net/route");
  return facts;
}

NameFacts GatherNames(const Sources& sources) {
  NameFacts facts;
  const auto found = Resolve(sources.host_name, 0);
  if (!found.ok()) {
    facts.error = found.status().message();
    return facts;
  }
  for (const SocketAddress& address : *found) {
    if (std::ranges::find(facts.addresses, address.Host()) == facts.addresses.end())
      facts.addresses.push_back(address.Host());
  }
  return facts;
}

RouteFacts GatherRoute(const Sources& sources) {
  RouteFacts facts;
  if (!sources.check_route) return facts;
  facts.target = sources.settings.controller;
  const auto place = ParseHostPort(facts.target);
  const auto addresses =
      place.ok() ? Resolve(place->host, place->port) : Result<std::vector<SocketAddress>>(place.status());
  if (!addresses.ok()) {
    facts.error = addresses.status().message();
    return facts;
  }
  for (const SocketAddress& address : *addresses) {
    const auto source = SourceTo(address);
    if (!source.ok()) {
      facts.error = StrCat(address.Host(), ": ", source.status().message());
      continue;
    }
    facts.error.clear();
    facts.source = source->Host();
    for (const auto& [interface, own] : sources.addresses) {
      if (std::ranges::find(own, facts.source) != own.end()) facts.interface = interface;
    }
    break;
  }
  return facts;
}

ClockFacts GatherClock(const Sources& sources) {
  ClockFacts facts;
  facts.reference = sources.clock;
  timex state{};
  facts.synchronised = adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
  if (facts.reference.empty()) return facts;
  const auto date = AskDate(facts.reference, Clock::now() + FromSeconds(2));
  if (date.ok()) {
    facts.ahead_seconds = UnixNow() - *date;
  } else {
    facts.error = date.status().message();
  }
  return facts;
}

std::map<std::string, std::string> GatherEnvironment(const Sources& sources) {
  std::map<std::string, std::string> kept;
  for (const auto& [name, value] : sources.environment) {
    if (IsOfThisField(name)) kept.emplace(name, IsSecret(name) ? "(removed)" : value);
  }
  return kept;
}

std::map<std::string, std::string> GatherSettings(const Sources& sources) {
  std::map<std::string, std::string> all;
  for (const SettingInfo& info : SettingsTable()) all.emplace(info.name, sources.settings.Get(info.name));
  return all;
}

}  // namespace weightcast::doctor
