#include "trace/exporter.h"

#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/acceptor.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"
#include "trace/metrics.h"
#include "weightcast/clock.h"

namespace weightcast::trace {
namespace {

constexpr Duration kPatience = std::chrono::seconds(2);
constexpr size_t kMostHeld = 64;

struct Place {
  std::string host;
  PortRange ports;
};

Result<Place> ParsePlace(const std::string& where) {
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos)
    return Status(Code::kInvalidArgument,
                  StrCat("metrics is '", where, "'; give host:port or host:low-high, as in 127.0.0.1:9470"));
  const std::string ports = where.substr(colon + 1);
  const bool range = ports.find('-') != std::string::npos;
  Place place;
  if (ports != "0") {  // Any free one.
    WC_ASSIGN_OR_RETURN(place.ports, ParsePortRange(range ? ports : StrCat(ports, "-", ports)));
  }
  WC_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(StrCat(where.substr(0, colon), ":1")));
  place.host = parsed.host;
  return place;
}

std::string Response(std::string_view status, std::string_view body) {
  return StrCat("HTTP/1.1 ", status,
                "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ", body.size(),
                "\r\nConnection: close\r\n\r\n", body);
}

Acceptor::Answer Look(const Acceptor::Opening& opening) {
  const std::string_view head = opening.bytes;
  if (head.find("\r\n\r\n") == std::string_view::npos) return {.then = Acceptor::Answer::Then::kWait};
  const bool known = head.starts_with("GET /metrics ") || head.starts_with("GET /metrics?");
  return {.send = known ? Response("200 OK", PrometheusText()) : Response("404 Not Found", "GET /metrics\n")};
}

class Server final : public Exporter {
 public:
  static Result<std::shared_ptr<Exporter>> Start(const std::string& where) {
    WC_ASSIGN_OR_RETURN(const Place place, ParsePlace(where));
    WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(place.host, 0));
    WC_ASSIGN_OR_RETURN(auto listener, Listen(addresses.front(), place.ports));
    auto server = std::make_shared<Server>();
    WC_ASSIGN_OR_RETURN(server->address_, LocalAddressOf(listener.get()));
    Acceptor::Options options{
        .thread_name = "wc-metrics", .listeners = {}, .most = kMostHeld, .patience = kPatience, .look = Look};
    options.listeners.push_back(std::move(listener));
    WC_ASSIGN_OR_RETURN(server->acceptor_, Acceptor::Start(std::move(options)));
    WC_LOG(kInfo, "metrics at http://", server->address(), "/metrics");
    return std::shared_ptr<Exporter>(std::move(server));
  }
  [[nodiscard]] std::string address() const override { return address_.ToString(); }

 private:
  SocketAddress address_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace

Result<std::shared_ptr<Exporter>> Exporter::For(const std::string& where) {
  static std::mutex mutex;
  static auto* exporters = new std::map<std::string, std::weak_ptr<Exporter>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Exporter>& known = (*exporters)[where];
  if (auto exporter = known.lock()) return exporter;
  WC_ASSIGN_OR_RETURN(auto exporter, Server::Start(where));
  known = exporter;
  return exporter;
}

}  // namespace weightcast::trace
