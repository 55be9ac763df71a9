#include "peertest/target.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/strings.h"
#include "peertest/messages.h"

namespace weightcast::peertest {
namespace {

constexpr size_t kMostHost = 253;              ///< Of a DNS name.
constexpr size_t kMostTarget = kMostHost + 8;  ///< With brackets, colon and port.

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace

Result<HostPort> ParseTarget(std::string_view text) {
  const Status wrong = Error(Code::kInvalidArgument, "'", text.substr(0, kMostTarget),
                             "' is not the name or address of a host; write NAME, NAME:PORT or [IPV6]:PORT");
  const bool blank = text.find_first_of(" \t,/") != std::string_view::npos;
  if (text.empty() || text.size() > kMostTarget || blank || !IsPrintable(text)) return wrong;
  // Brackets are only around all of an address.
  if (text.find('[', 1) != std::string_view::npos) return wrong;
  if (std::ranges::count(text, ']') != (text.front() == '[' ? 1 : 0)) return wrong;
  HostPort place{.host = std::string(text), .port = kDefaultPort};
  const bool bracketed = text.front() == '[';
  if (bracketed && text.back() == ']') {
    place.host = text.substr(1, text.size() - 2);
  } else if (bracketed || std::ranges::count(text, ':') == 1) {
    auto parsed = ParseHostPort(text);
    if (!parsed.ok() || parsed->port == 0) return wrong;
    place = *std::move(parsed);
  }
  if (place.host.empty() || place.host.size() > kMostHost) return wrong;
  return place;
}

Result<std::vector<std::string>> ParseHostsFile(std::string_view text) {
  std::vector<std::string> hosts;
  std::set<std::string> seen;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view host = Trim(row.substr(0, row.find('#')));
    if (host.empty()) continue;
    const auto place = ParseTarget(host);
    if (!place.ok()) return Error(place.status().code(), "line ", line, ": ", place.status().message());
    if (!seen.insert(TargetText(*place)).second)
      return Error(Code::kInvalidArgument, "line ", line, ": ", host,
                   " is listed twice; remove one of the lines");
    hosts.push_back(TargetText(*place));
    if (hosts.size() > kMostHosts)
      return Error(Code::kInvalidArgument, "there are more than ", kMostHosts,
                   " hosts; test a part at a time");
  }
  if (hosts.size() < 2)
    return Error(Code::kInvalidArgument, "there are fewer than two hosts",
                 hosts.empty() ? "" : StrCat(", only ", hosts.front()),
                 "; write one host[:port] in each line");
  return hosts;
}

std::string TargetText(const HostPort& place) {
  const bool v6 = place.host.find(':') != std::string::npos;
  return StrCat(v6 ? "[" : "", place.host, v6 ? "]:" : ":", static_cast<int>(place.port));
}

Result<SocketAddress> SourceTo(const SocketAddress& target) {
  const UniqueFd socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || connect(socket.get(), target.raw(), target.length()) != 0)
    return Error(Code::kUnavailable, "there is no route to ", target.Host(), ": ", ErrnoText(errno),
                 "; check this host's routes with ip route");
  return LocalAddressOf(socket.get());
}

}  // namespace weightcast::peertest
