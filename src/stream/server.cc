#include "stream/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <thread>
#include <utility>

#include "base/acceptor.h"
#include "base/log.h"
#include "base/thread.h"
#include "stream/bind.h"
#include "stream/client_hello.h"
#include "stream/keys.h"
#include "stream/stream_loop.h"

namespace weightcast::stream {
namespace {

/// Of a stranger's connection: room for a ClientHello.
constexpr int kStrangersBuffer = 4 << 10;

class Server final : public StreamServer {
 public:
  ~Server() override { Stop(); }

  static Result<std::unique_ptr<StreamServer>> Make(const ServerOptions& options) {
    WC_ASSIGN_OR_RETURN(BoundName bound, ListenAtName(options.host, options.port));
    auto server = std::unique_ptr<Server>(new Server(options, bound.port));
    WC_RETURN_IF_ERROR(server->loop_.Begin(server->keys_, options.patience, options.most_handshakes));
    WC_ASSIGN_OR_RETURN(server->thread_, StartThread("wc-streams", [loop = &server->loop_] { loop->Run(); }));
    WC_ASSIGN_OR_RETURN(
        server->acceptor_,
        Acceptor::Start({.thread_name = "wc-accept",
                         .listeners = std::move(bound.listeners),
                         .patience = options.patience,
                         .look = [raw = server.get()](const auto& opening) { return raw->Look(opening); },
                         .take = [raw = server.get()](UniqueFd fd) { raw->Take(std::move(fd)); }}));
    return std::unique_ptr<StreamServer>(std::move(server));
  }

  [[nodiscard]] uint16_t port() const override { return port_; }
  void Post(std::function<void()> task) override { loop_.Post(std::move(task)); }
  void Stop() override {
    acceptor_.reset();
    if (!thread_.joinable()) return;
    if (::getpid() != process_) return thread_.detach();  // A forked child has no such thread.
    loop_.Stop();
    thread_.join();
  }

 private:
  Server(const ServerOptions& options, uint16_t port)
      : keys_(std::make_shared<const ServerKeys>(options.master, options.version)),
        loop_(options.handlers, options.most_queued, options.lease),
        port_(port) {}

  /// On the acceptor's thread: only who names a known key costs the loop anything.
  [[nodiscard]] Acceptor::Answer Look(const Acceptor::Opening& opening) const {
    using Then = Acceptor::Answer::Then;
    if (opening.before == 0)
      ::setsockopt(opening.fd, SOL_SOCKET, SO_RCVBUF, &kStrangersBuffer, sizeof kStrangersBuffer);
    if (IsHttp2Client(opening.bytes)) return RefuseHttp2(opening);
    const auto hello = ReadClientHello(opening.bytes);
    if (!hello.ok()) {
      WC_LOG_LIMITED(kWarning, "refused what connected from ", PeerTextOf(opening.fd), ": ",
                     hello.status().message());
      return {.then = Then::kEnd, .send = AlertRecord(Alert::kDecodeError)};
    }
    const std::optional<ClientHello>& whole = *hello;
    if (!whole) return {.then = Then::kWait};
    const auto judgement = keys_->Judge(*whole);
    if (judgement.identity) return {.then = Then::kTake};
    WC_LOG_LIMITED(kWarning, "refused a process at ", PeerTextOf(opening.fd), ": ", judgement.reason);
    return {.then = Then::kEnd, .send = AlertRecord(judgement.alert)};
  }

  static Acceptor::Answer RefuseHttp2(const Acceptor::Opening& opening) {
    using Then = Acceptor::Answer::Then;
    if (opening.bytes.size() < kLeastPreface) return {.then = Then::kWait};
    WC_LOG_LIMITED(
        kWarning, "refused a process at ", PeerTextOf(opening.fd),
        ": it speaks HTTP/2, as an older release of weightcast does; use the same weightcast on all hosts");
    return {.then = Then::kEnd};
  }

  void Take(UniqueFd fd) { loop_.HandOver(std::move(fd)); }

  static constexpr size_t kLeastPreface = 16;
  const std::shared_ptr<const ServerKeys> keys_;
  StreamLoop loop_;
  std::thread thread_;
  std::unique_ptr<Acceptor> acceptor_;
  const uint16_t port_;
  const int process_ = ::getpid();
};

}  // namespace

Result<std::unique_ptr<StreamServer>> StreamServer::Start(ServerOptions options) {
  return Server::Make(options);
}

}  // namespace weightcast::stream
