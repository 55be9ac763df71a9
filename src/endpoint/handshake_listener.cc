#include "endpoint/handshake_listener.h"

#include <algorithm>

#include "base/split_list.h"
#include "base/strings.h"
#include "endpoint/handshakes.h"

namespace weightcast::endpoint {
namespace {

/// Accepted at once before others get their turn.
constexpr int kAcceptsAtOnce = 64;
/// How long nobody is accepted when descriptors have run out.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

bool IsBareV6(std::string_view text) {
  return !text.starts_with('[') && std::count(text.begin(), text.end(), ':') > 1;
}

/// "10.0.0.1", "fe80::1%eth0", "[::1]" → with this port.
std::string WithPort(std::string_view host, uint16_t port) {
  return IsBareV6(host) ? StrCat("[", host, "]:", port) : StrCat(host, ":", port);
}

Result<SocketAddress> BindAddress(const Settings& settings) {
  if (settings.bind.empty()) return AnyAddress();
  auto address = SocketAddress::Parse(WithPort(settings.bind, 0));
  if (address.ok() && address->family() != AF_UNIX) return address;
  return Error(Code::kInvalidArgument, "setting bind is '", settings.bind,
               "'; write a numeric address such as 10.0.0.1 or ::1");
}

/// 0: reachable from anywhere; 1: from the same link, under a scope name that may differ; 2: from here.
int Remoteness(const SocketAddress& address) {
  if (address.IsLoopback()) return 2;
  return address.IsLinkLocal() ? 1 : 0;
}

Result<std::vector<std::string>> Advertised(const Settings& settings, uint16_t port) {
  std::vector<std::string> addresses;
  for (const std::string_view text : SplitList(settings.advertise)) {
    const bool complete = !IsBareV6(text) && ParseHostPort(text).ok();
    addresses.push_back(complete ? std::string(text) : WithPort(text, port));
    const std::string& address = addresses.back();
    if (!ParseHostPort(address).ok() || (address.starts_with('[') && !SocketAddress::Parse(address).ok())) {
      return Error(Code::kInvalidArgument, "setting advertise has '", text,
                   "', which is not an address; write a numeric one such as 10.0.0.1");
    }
  }
  return addresses;
}

std::vector<std::string> FoundAddresses(const Settings& settings, int family, uint16_t port) {
  auto found = LocalAddresses(settings.interface);
  if (family == AF_INET)
    std::erase_if(found, [](const auto& address) { return address.family() != AF_INET; });
  std::ranges::stable_sort(found, {}, Remoteness);
  std::vector<std::string> addresses;
  for (SocketAddress& address : found) {
    address.set_port(port);
    addresses.push_back(address.ToString());
  }
  return addresses;
}

}  // namespace

Result<std::unique_ptr<HandshakeListener>> HandshakeListener::Open(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(SocketAddress bind, BindAddress(settings));
  WC_ASSIGN_OR_RETURN(const PortRange ports, ParsePortRange(settings.port_range));
  std::unique_ptr<HandshakeListener> made(new HandshakeListener());
  WC_ASSIGN_OR_RETURN(UniqueFd listener, Listen(bind, ports));
  made->socket_ = Listener(std::move(listener));
  AcceptOnceHeard(made->socket_.get());
  WC_ASSIGN_OR_RETURN(const SocketAddress bound, LocalAddressOf(made->socket_.get()));
  made->port_ = bound.port();
  made->loopback_only_ = bound.IsLoopback();
  if (!settings.advertise.empty()) {
    WC_ASSIGN_OR_RETURN(made->addresses_, Advertised(settings, made->port_));
  } else if (bound.IsWildcard()) {
    made->addresses_ = FoundAddresses(settings, bound.family(), made->port_);
  } else {
    made->addresses_ = {bound.ToString()};
  }
  if (made->addresses_.empty()) {
    return Error(
        Code::kInvalidArgument, "no network address to offer: ",
        !settings.advertise.empty()
            ? StrCat("setting advertise is '", settings.advertise, "'")
            : StrCat("no interface of ",
                     settings.interface.empty() ? "this host"
                                                : StrCat("setting interface, '", settings.interface, "',"),
                     " is up and has an ", bound.family() == AF_INET ? "IPv4" : "IP",
                     " address (ip -brief address)"),
        "; correct setting interface, or give addresses in setting advertise");
  }
  return made;
}

Status HandshakeListener::Start(Sockets& sockets, Timers& timers, Handshakes& handshakes) {
  sockets_ = &sockets;
  timers_ = &timers;
  handshakes_ = &handshakes;
  WC_ASSIGN_OR_RETURN(key_, sockets_->Watch(socket_.get(), EPOLLIN, [this](uint32_t) { OnAcceptable(); }));
  return Status::Ok();
}

void HandshakeListener::Stop() {
  sockets_->Forget(key_);
  timers_->Cancel(pause_);
  socket_.reset();
}

void HandshakeListener::OnAcceptable() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto fd = Accept(socket_.get());
    if (!fd.ok()) {
      if (complaint_.Due(Clock::now())) {
        WC_LOG(kError, "the endpoint accepts no connections now: ", fd.status().message());
      }
      // The pending connection stays readable: without a rest we would spin on it.
      if (handshakes_->MakeRoom("dropped, as this process can open no more files")) continue;
      sockets_->Change(key_, 0);
      pause_ = timers_->Add(In(kAcceptPause), [this] { sockets_->Change(key_, EPOLLIN); });
      return;
    }
    if (!fd->valid()) return;
    handshakes_->Accept(std::move(fd).value());
  }
}

Result<std::vector<SocketAddress>> ResolveAll(const std::vector<std::string>& addresses) {
  std::vector<SocketAddress> all;
  Status unknown(Code::kInvalidArgument, "connect was given no address; give at least one");
  for (const std::string& text : addresses) {
    auto numeric = ParseOfPeer(text);
    if (numeric.ok()) {
      all.insert(all.end(), numeric->begin(), numeric->end());
      continue;
    }
    if (numeric.status().code() == Code::kUnavailable) {
      unknown = numeric.status();
      continue;
    }
    WC_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(text));
    auto found = Resolve(target.host, target.port);
    if (!found.ok()) {
      unknown = found.status();
    } else {
      all.insert(all.end(), found->begin(), found->end());
    }
  }
  if (all.empty()) return unknown;
  return all;
}

}  // namespace weightcast::endpoint
