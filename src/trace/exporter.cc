#include "trace/exporter.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "trace/metrics.h"
#include "weightcast/clock.h"

namespace weightcast::trace {
namespace {

constexpr Duration kPatience = std::chrono::seconds(2);
constexpr size_t kMaxRequest = 8192;
constexpr int kBacklog = 16;

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

/// The first line of a request, once its head is there.
Result<std::string> ReadRequest(int socket, TimePoint deadline) {
  std::string head;
  while (head.find("\r\n\r\n") == std::string::npos) {
    if (head.size() >= kMaxRequest) return Status(Code::kProtocol, "the request is too long");
    char bytes[1024];
    if (!WaitFor(socket, POLLIN, deadline)) return Status(Code::kTimedOut, "no request came");
    const ssize_t got = ::recv(socket, bytes, sizeof bytes, 0);
    if (got <= 0) return Status(Code::kUnavailable, "the connection ended");
    head.append(bytes, static_cast<size_t>(got));
  }
  return head.substr(0, head.find("\r\n"));
}

std::string Answer(std::string_view status, std::string_view body) {
  return StrCat("HTTP/1.1 ", status,
                "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: ", body.size(),
                "\r\nConnection: close\r\n\r\n", body);
}

class Server final : public Exporter {
 public:
  static Result<std::shared_ptr<Exporter>> Start(const std::string& where) {
    WC_ASSIGN_OR_RETURN(const Place place, ParsePlace(where));
    WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(place.host, 1));
    auto server = std::make_shared<Server>();
    WC_ASSIGN_OR_RETURN(server->listener_, Listen(addresses.front(), place.ports, kBacklog));
    WC_ASSIGN_OR_RETURN(server->address_, LocalAddressOf(server->listener_.get()));
    server->end_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!server->end_.valid()) return Status(Code::kExhausted, StrCat("eventfd: ", ErrnoText(errno)));
    server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
    WC_LOG(kInfo, "metrics at http://", server->address(), "/metrics");
    return std::shared_ptr<Exporter>(std::move(server));
  }
  ~Server() override {
    if (!thread_.joinable()) return;
    if (::getpid() != process_) {  // A forked child has no such thread.
      thread_.detach();
      return;
    }
    const uint64_t one = 1;
    [[maybe_unused]] const auto rung = ::write(end_.get(), &one, sizeof one);
    thread_.join();
  }
  [[nodiscard]] std::string address() const override { return address_.ToString(); }

 private:
  void Run() {
    NameThread("wc-metrics");
    pollfd fds[] = {{end_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    while (true) {
      if (::poll(fds, 2, -1) < 0) continue;
      if (fds[0].revents != 0) return;
      auto socket = Accept(listener_.get());
      if (socket.ok() && socket->valid()) Serve(socket->get());
      // Out of descriptors: not the whole of a core for that.
      if (!socket.ok()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  static void Serve(int socket) {
    const TimePoint deadline = Clock::now() + kPatience;
    const auto request = ReadRequest(socket, deadline);
    if (!request.ok()) return;
    const std::string_view line = *request;
    const bool known = line.starts_with("GET /metrics ") || line.starts_with("GET /metrics?");
    // A peer that goes away in the middle is its own affair.
    [[maybe_unused]] const Status sent = SendAll(
        socket, known ? Answer("200 OK", PrometheusText()) : Answer("404 Not Found", "GET /metrics\n"),
        deadline);
  }

  const pid_t process_ = ::getpid();
  UniqueFd listener_;
  UniqueFd end_;
  SocketAddress address_;
  std::thread thread_;
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
