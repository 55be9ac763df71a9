#include "peertest/session.h"

#include <algorithm>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"
#include "peertest/hex.h"
#include "peertest/port_counts.h"
#include "peertest/reach.h"
#include "peertest/test.h"

namespace weightcast::peertest {
namespace {

/// Whether packets to this address come to this host.
bool IsOwn(const SocketAddress& address) {
  return std::ranges::any_of(LocalAddresses(""),
                             [&](const SocketAddress& one) { return one.Host() == address.Host(); });
}

Status NotOpen() {
  return {Code::kProtocol,
          "the client asked before there was a connection; use the same weightcast on both hosts"};
}

}  // namespace

Result<Reply> Session::Answer(const Request& request) {
  return std::visit([this](const auto& ask) { return this->On(ask); }, request);
}

Result<Reply> Session::On(const AskBegin& ask) {
  const bool v6 = ask.address.find(':') != std::string::npos;
  const auto parsed = SocketAddress::Parse(v6 ? StrCat("[", ask.address, "]:0") : StrCat(ask.address, ":0"));
  SocketAddress at = AnyAddress();
  if (parsed.ok() && IsOwn(*parsed)) {
    at = *parsed;
    address_ = ask.address;
  }
  WC_ASSIGN_OR_RETURN(const PortRange ports, ParsePortRange(options_.settings.port_range));
  const bool peer_v6 = options_.peer.find(':') != std::string::npos;
  WC_ASSIGN_OR_RETURN(
      const SocketAddress peer,
      SocketAddress::Parse(peer_v6 ? StrCat("[", options_.peer, "]:0") : options_.peer + ":0"));
  auto echo = EchoResponder::Start(at, peer, ports);
  if (!echo.ok()) return Reply(Echo{.error = echo.status().message()});
  echo_ = std::move(*echo);
  return Reply(Echo{.error = "", .port = echo_->port(), .key = echo_->key()});
}

Result<Reply> Session::On(const AskReach& ask) {
  if (AddressesAt(ask.addresses, options_.peer).size() != ask.addresses.size())
    return Error(Code::kPermission, "the client comes from ", options_.peer,
                 " and asks to be reached at another address, which is refused: its address is translated on "
                 "the way (a container, NAT); give it an address of its own (the host's network)");
  return Reply(Reached{.errors = TryPorts(ask.addresses)});
}

Result<Reply> Session::On(const AskOpen& ask) {
  link_.reset();
  Settings settings = options_.settings;
  if (ask.traffic_class != kUnknown) settings.traffic_class = StrCat(ask.traffic_class);
  WC_ASSIGN_OR_RETURN(link_, DataLink::Open({.settings = std::move(settings),
                                             .transport = ask.transport,
                                             .address = address_,
                                             .key = ask.key,
                                             .rank = 0,
                                             .interrupted = options_.interrupted}));
  return Reply(Opened{.place = link_->place()});
}

Result<Reply> Session::On(const AskMeet& ask) {
  if (link_ == nullptr) return NotOpen();
  LinkPlace peer = ask.place;
  peer.addresses = AddressesAt(peer.addresses, options_.peer);
  WC_RETURN_IF_ERROR(ask.connect ? link_->Connect(peer) : link_->Await(peer));
  return Reply(Done{});
}

Result<Reply> Session::On(const AskPong& ask) {
  if (link_ == nullptr) return NotOpen();
  WC_RETURN_IF_ERROR(link_->Pong(ask.count));
  return Reply(Done{});
}

Result<Reply> Session::On(const AskWrite& ask) {
  if (link_ == nullptr) return NotOpen();
  WC_ASSIGN_OR_RETURN(const Rate rate, link_->Write(ask.bytes, ask.seconds));
  return Reply(Wrote{.rate = rate});
}

Result<Reply> Session::On(const AskDevice& /*ask*/) {
  WC_ASSIGN_OR_RETURN(auto api, drivers::LoadIbverbs());
  WC_ASSIGN_OR_RETURN(
      device_, transport::verbs::DeviceProbe::Open(
                   std::move(api), {.settings = options_.settings, .interrupted = options_.interrupted}));
  return Reply(DevicePlace{.place = ToHex(device_->place())});
}

Result<Reply> Session::On(const AskDeviceMeet& ask) {
  const auto place = FromHex(ask.place);
  if (device_ == nullptr || !place) return NotOpen();
  WC_RETURN_IF_ERROR(device_->Connect(*place));
  return Reply(Done{});
}

Result<Reply> Session::On(const AskDevicePong& ask) {
  if (device_ == nullptr) return NotOpen();
  WC_RETURN_IF_ERROR(device_->Pong(ask.count));
  return Reply(Done{});
}

Result<Reply> Session::On(const AskShut& /*ask*/) {
  device_.reset();
  link_.reset();
  return Reply(Done{});
}

Result<Reply> Session::On(const AskCounters& /*ask*/) { return Reply(Counters{.ports = ReadPortCounts()}); }

Result<Reply> Session::On(const AskOrder& ask) {
  WC_ASSIGN_OR_RETURN(stream::RoleToken token,
                      stream::RoleToken::Derive(options_.master, {.role = stream::Role::kTrainer}));
  report_ = Encode(RunTest(
      ask.target, ask.plan,
      {.settings = options_.settings, .token = std::move(token), .interrupted = options_.interrupted}));
  if (report_.size() > kMostReport)
    return Error(Code::kInternal, "the report of a test has ", report_.size(), " bytes, above ", kMostReport,
                 kReportBug);
  return Reply(Ordered{.bytes = report_.size()});
}

}  // namespace weightcast::peertest
