#include "http/place.h"

#include <algorithm>

#include "base/strings.h"

namespace weightcast::http {

Result<Place> Place::Parse(std::string_view where, std::string_view setting, int example) {
  const size_t colon = where.rfind(':');
  const auto wrong = [&] {
    return Error(Code::kInvalidArgument, setting, " is '", where,
                 "'; give host:port or host:low-high, as in 127.0.0.1:", example);
  };
  if (colon == std::string_view::npos) return wrong();
  const std::string_view ports = where.substr(colon + 1);
  const bool range = ports.find('-') != std::string_view::npos;
  Place place;
  if (ports != "0") {  // Any free one.
    auto parsed = ParsePortRange(range ? std::string(ports) : StrCat(ports, "-", ports));
    if (!parsed.ok()) return wrong();
    place.ports = *parsed;
  }
  const auto parsed = ParseHostPort(StrCat(where.substr(0, colon), ":1"));
  if (!parsed.ok()) return wrong();
  place.host = parsed->host;
  return place;
}

Result<bool> Place::IsLoopback() const {
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(host, 0));
  return std::all_of(addresses.begin(), addresses.end(), [](const auto& one) { return one.IsLoopback(); });
}

Result<UniqueFd> Place::Open() const {
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(host, 0));
  return Listen(addresses.front(), ports);
}

}  // namespace weightcast::http
