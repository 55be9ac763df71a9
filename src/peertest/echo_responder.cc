#include "peertest/echo_responder.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/random.h"
#include "base/strings.h"
#include "base/thread.h"

namespace weightcast::peertest {

Result<std::unique_ptr<EchoResponder>> EchoResponder::Start(const SocketAddress& at,
                                                            const SocketAddress& peer, PortRange ports) {
  std::unique_ptr<EchoResponder> made(new EchoResponder());
  FillRandom(std::as_writable_bytes(std::span(made->key_)));
  made->peer_ = peer.Host();
  WC_ASSIGN_OR_RETURN(made->fd_, OpenEcho(at, ports));
  WC_ASSIGN_OR_RETURN(const SocketAddress bound, LocalAddressOf(made->fd_.get()));
  made->port_ = bound.port();
  WC_ASSIGN_OR_RETURN(made->stop_, WakeFd::Create());
  WC_ASSIGN_OR_RETURN(made->thread_, StartThread("wc-echo", [raw = made.get()] { raw->Run(); }));
  return made;
}

EchoResponder::~EchoResponder() {
  if (!thread_.joinable()) return;
  stop_.Wake();
  thread_.join();
}

std::string EchoResponder::key() const { return ToHex({key_.data(), key_.size()}); }

void EchoResponder::Run() {
  for (;;) {
    pollfd polled[] = {{fd_.get(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
    if (poll(polled, 2, -1) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) return;
    AnswerAll();
  }
}

void EchoResponder::AnswerAll() {
  constexpr int kAtOnce = 64;  // Then the stop is looked at.
  static thread_local std::vector<char> buffer(kMostEcho + 1);
  for (int i = 0; i < kAtOnce; ++i) {
    int error = 0;
    const auto received = ReceiveEcho(fd_.get(), buffer, &error);
    if (!received) return;
    const auto header = ReadEcho(received->bytes, key_);
    if (!header || received->from.Host() != peer_) continue;
    const size_t bytes = std::clamp<size_t>(header->reply_bytes, kEchoHeader, kMostEcho);
    // One that does not go out is one that is lost: the other side counts those.
    (void)SendEcho(fd_.get(), std::span<const char>(buffer).first(bytes), received->traffic_class,
                   &received->from);
  }
}

}  // namespace weightcast::peertest
