#include "transport/tcp/lane_acceptor.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/split_list.h"
#include "base/strings.h"
#include "base/traffic_class.h"

namespace weightcast::transport::tcp {
namespace {

/// Accepted at once before others get their turn.
constexpr int kAcceptsAtOnce = 64;
/// After descriptors have run out.
constexpr Duration kRest = std::chrono::milliseconds(100);

UniqueFd OpenSpare() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

/// An address without a port, as settings have it: "10.0.0.1", "fe80::1%eth0", "[::1]".
Result<SocketAddress> ParseHost(std::string_view setting, std::string_view text) {
  const bool bare_v6 = text.find(':') != std::string_view::npos && !text.starts_with('[');
  auto address = SocketAddress::Parse(bare_v6 ? StrCat("[", text, "]:0") : StrCat(text, ":0"));
  if (address.ok()) return address;
  return Error(Code::kInvalidArgument, "setting ", setting, " has '", text,
               "', which is not a numeric address; write one such as 10.0.0.1 or fe80::1%eth0");
}

Result<std::vector<SocketAddress>> ParseHosts(std::string_view list) {
  std::vector<SocketAddress> addresses;
  for (const std::string_view text : SplitList(list)) {
    WC_ASSIGN_OR_RETURN(const auto address, ParseHost("advertise", text));
    addresses.push_back(address);
  }
  return addresses;
}

}  // namespace

LaneAcceptor::LaneAcceptor(const Poller& poller, uint64_t listener_key, uint64_t visitor_key,
                           Duration patience, Duration lease)
    : poller_(poller),
      listener_key_(listener_key),
      visitor_key_(visitor_key),
      patience_(patience),
      lease_(lease),
      spare_(OpenSpare()) {}

LaneAcceptor::~LaneAcceptor() {
  for (const auto& [number, visitor] : visitors_) poller_.Remove(visitor.fd.get());
  if (listener_.valid()) poller_.Remove(listener_.get());
}

Status LaneAcceptor::Listen(const Settings& settings) {
  SocketAddress at = AnyAddress();
  if (!settings.bind.empty()) {
    WC_ASSIGN_OR_RETURN(at, ParseHost("bind", settings.bind));
  }
  WC_ASSIGN_OR_RETURN(const PortRange ports, ParsePortRange(settings.port_range));
  WC_ASSIGN_OR_RETURN(advertised_, ParseHosts(settings.advertise));
  WC_ASSIGN_OR_RETURN(UniqueFd listener, weightcast::Listen(at, ports));
  WC_ASSIGN_OR_RETURN(traffic_class_, ParseTrafficClass(settings.traffic_class));
  if (traffic_class_) WC_RETURN_IF_ERROR(SetTrafficClass(listener.get(), *traffic_class_));
  listener_ = Listener(std::move(listener));
  AcceptOnceHeard(listener_.get());
  WC_ASSIGN_OR_RETURN(bound_, LocalAddressOf(listener_.get()));
  interfaces_ = settings.interface;
  chosen_ = !settings.advertise.empty() || (!interfaces_.empty() && !interfaces_.starts_with('^'));
  return poller_.Add(listener_.get(), EPOLLIN, listener_key_);
}

std::vector<SocketAddress> LaneAcceptor::Addresses(bool same_host) const {
  std::vector<SocketAddress> addresses = advertised_;
  if (addresses.empty() && !bound_.IsWildcard()) addresses = {bound_};
  if (addresses.empty()) {
    addresses = LocalAddresses(interfaces_);
    // A socket for IPv4 alone hears no IPv6; the other way round both arrive.
    if (bound_.family() == AF_INET)
      std::erase_if(addresses, [](const auto& a) { return a.family() != AF_INET; });
    // The peer has to guess the link of a link-local address.
    std::ranges::stable_partition(addresses, [](const auto& a) { return !a.IsLinkLocal(); });
  }
  if (!same_host) std::erase_if(addresses, [](const auto& address) { return address.IsLoopback(); });
  for (auto& address : addresses) address.set_port(bound_.port());
  return addresses;
}

void LaneAcceptor::Watch(uint32_t events) const {
  (void)poller_.Modify(listener_.get(), events, listener_key_);
}

UniqueFd LaneAcceptor::AcceptOne(TimePoint now) {
  auto fd = Accept(listener_.get());
  if (fd.ok()) return std::move(fd).value();
  if (complaint_.Due(now)) {
    WC_LOG(kError, "tcp: no connections are taken now: ", fd.status().message());
  }
  if (!half_open_.empty()) {
    Dismiss(visitors_.find(half_open_.Victim()));
    fd = Accept(listener_.get());
    if (fd.ok()) return std::move(fd).value();
  }
  // It would stay pending and keep the listener readable for ever: take it with the spare and hang up.
  spare_.reset();
  const bool turned_away = Accept(listener_.get()).ok();
  spare_ = OpenSpare();
  if (!turned_away || !spare_.valid()) {  // Others took the spare: without a rest we would spin.
    Watch(0);
    rest_ = now + kRest;
  }
  return {};
}

void LaneAcceptor::OnConnect(TimePoint now, Host& host) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    UniqueFd fd = AcceptOne(now);
    if (!fd.valid()) return;
    Admit(std::move(fd), now, host);
  }
}

void LaneAcceptor::Admit(UniqueFd fd, TimePoint now, Host& host) {
  if (half_open_.full()) Dismiss(visitors_.find(half_open_.Victim()));
  TuneTcp(fd.get(), lease_);
  // It has the listener's, unless net.ipv4.tcp_reflect_tos gives it the peer's. The listener's was accepted.
  if (traffic_class_) (void)SetTrafficClass(fd.get(), *traffic_class_);
  const uint64_t number = next_visitor_++;
  if (!poller_.Add(fd.get(), EPOLLIN, visitor_key_ + number).ok()) return;
  visitors_[number] = {.fd = std::move(fd), .deadline = now + patience_};
  half_open_.Add(number);
  OnReady(number, host);  // An honest greeting is here already.
}

void LaneAcceptor::OnReady(uint64_t number, Host& host) {
  const auto found = visitors_.find(number);
  if (found == visitors_.end()) return;
  Visitor& visitor = found->second;
  // Exactly one greeting at a time: frames may stand behind the start.
  const ssize_t got =
      recv(visitor.fd.get(), &visitor.bytes[visitor.got], kGreetingSize - visitor.got, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return Dismiss(found);
  visitor.got += static_cast<size_t>(got);
  if (visitor.got < kGreetingSize) return;
  visitor.got = 0;
  if (!Greet(visitor, host)) return Dismiss(found);
  half_open_.Remove(number);
  if (!visitor.fd.valid()) visitors_.erase(found);
}

bool LaneAcceptor::Greet(Visitor& visitor, Host& host) {
  const auto greeting = ParseGreeting(visitor.bytes);
  if (!greeting) return false;
  if (visitor.welcomed) {
    if (greeting->kind != Greeting::Kind::kStart) return false;
    poller_.Remove(visitor.fd.get());
    host.OnStart(*greeting, std::move(visitor.fd));
    return true;
  }
  if (greeting->kind != Greeting::Kind::kHello) return false;
  const Cookie* cookie = host.OnHello(*greeting);
  if (cookie == nullptr) return false;
  visitor.welcomed = true;
  const auto welcome =
      EncodeGreeting({Greeting::Kind::kWelcome, greeting->lane, greeting->generation, *cookie});
  return send(visitor.fd.get(), welcome.data(), welcome.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == kGreetingSize;
}

void LaneAcceptor::Dismiss(std::map<uint64_t, Visitor>::iterator visitor) {
  poller_.Remove(visitor->second.fd.get());
  half_open_.Remove(visitor->first);
  visitors_.erase(visitor);
}

void LaneAcceptor::Step(TimePoint now) {
  if (rest_ <= now) {
    rest_ = TimePoint::max();
    if (!spare_.valid()) spare_ = OpenSpare();
    Watch(EPOLLIN);
  }
  while (!visitors_.empty() && visitors_.begin()->second.deadline <= now) Dismiss(visitors_.begin());
}

TimePoint LaneAcceptor::NextStep() const {
  return visitors_.empty() ? rest_ : std::min(rest_, visitors_.begin()->second.deadline);
}

}  // namespace weightcast::transport::tcp
