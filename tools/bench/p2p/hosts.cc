#include "tools/bench/p2p/hosts.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "base/socket.h"
#include "base/strings.h"
#include "control/token.h"
#include "tools/bench/p2p/party.h"
#include "tools/bench/processes.h"
#include "tools/common/stop.h"

namespace weightcast::tools {
namespace {

constexpr std::string_view kGreeting = "weightcast bench p2p 1";
constexpr size_t kMaxProof = 256;  ///< Of what is read from somebody who has proven nothing.
constexpr double kProofSeconds = 10;
constexpr size_t kMaxParties = 256;
constexpr Duration kUserTimeout = std::chrono::seconds(30);

std::string Nonce() {
  std::string nonce(32, '\0');
  FillRandom(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

/// What one side proves: that it knows the token now, and which side it is.
std::string Proof(const std::string& token, std::string_view side, std::string_view nonces) {
  const Digest digest = HmacSha256(token, StrCat(kGreeting, " ", side, " ", nonces));
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Status Verify(std::string_view got, const std::string& expected) {
  if (stream::Secret(got) == stream::Secret(expected)) return Status::Ok();
  return {
      Code::kPermission,
      "the other host of the benchmark has another job token; give both hosts the same WEIGHTCAST_TOKEN or "
      "setting token_file"};
}

/// At the host that was called.
Status ProveToCaller(const BenchChannel& channel, const std::string& token) {
  const TimePoint deadline = Clock::now() + FromSeconds(kProofSeconds);
  WC_ASSIGN_OR_RETURN(const std::string greeting, channel.Receive(deadline, kMaxProof));
  if (!greeting.starts_with(kGreeting) || greeting.size() != kGreeting.size() + 32)
    return {Code::kProtocol, "the caller is not a benchmark of this release; run one release on both hosts"};
  const std::string own = Nonce();
  const std::string nonces = StrCat(greeting.substr(kGreeting.size()), own);
  WC_RETURN_IF_ERROR(channel.Send(own));
  WC_ASSIGN_OR_RETURN(const std::string proof, channel.Receive(deadline, kMaxProof));
  if (const Status same = Verify(proof, Proof(token, "caller", nonces)); !same.ok()) {
    WC_RETURN_IF_ERROR(channel.Answer(same, ""));
    return same;
  }
  return channel.Answer(Status::Ok(), Proof(token, "called", nonces));
}

/// This host's address of a connection, as the setting `bind` takes it.
Result<std::string> LocalHostOf(int fd) {
  constexpr std::string_view kMapped = "::ffff:";  // An IPv4 connection to a socket that takes both.
  WC_ASSIGN_OR_RETURN(const SocketAddress local, LocalAddressOf(fd));
  const std::string host = local.Host();
  return host.starts_with(kMapped) ? host.substr(kMapped.size()) : host;
}

void Serve(UniqueFd socket, const Settings& settings, const std::string& token) {
  TuneTcp(socket.get(), kUserTimeout);
  const auto local = LocalHostOf(socket.get());
  const BenchChannel channel(std::move(socket));
  if (!local.ok() || !ProveToCaller(channel, token).ok()) return;
  // The caller is told what goes wrong; that its end breaks connections is no error.
  if (GetLogLevel() == LogLevel::kWarning) SetLogLevel(LogLevel::kError);
  ServeParty(channel, SettingsOn(*local, settings), token);
}

Result<SocketAddress> AddressToListenOn(const std::string& listen) {
  if (const auto port = ParseNumber<uint16_t>(listen)) {
    SocketAddress any = AnyAddress();
    any.set_port(*port);
    return any;
  }
  WC_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(listen));
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(place.host, place.port));
  return addresses.front();
}

/// The processes of this host that serve callers.
class Parties {
 public:
  ~Parties() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }
  void Start(UniqueFd socket, UniqueFd& listener, const Settings& settings, const std::string& token) {
    std::erase_if(pids_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) == pid; });
    if (pids_.size() >= kMaxParties) return;  // The caller sees its connection closed.
    const auto pid = ForkWorker([&] {
      listener.reset();
      Serve(std::move(socket), settings, token);
      return Status::Ok();
    });
    if (pid.ok()) pids_.insert(*pid);
  }

 private:
  std::set<pid_t> pids_;
};

}  // namespace

Settings SettingsOn(const std::string& local_address, Settings settings) {
  if (settings.bind.empty() && settings.advertise.empty() && settings.interface.empty())
    settings.bind = local_address;
  return settings;
}

Result<std::string> TokenFor(const std::string& host, const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const control::Token token, control::LoadToken(settings));
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(host, 0));
  const bool loopback = std::ranges::all_of(addresses, &SocketAddress::IsLoopback);
  if (token.configured() || loopback) {
    WC_ASSIGN_OR_RETURN(const std::string key, token.SharedKey(stream::Purpose::kPeers));
    return ToHex(key);
  }
  return Error(Code::kPermission, "without a job token the benchmark stays on 127.0.0.1 and does not use ",
               host, ": set WEIGHTCAST_TOKEN_FILE to a file with the same token on both hosts");
}

Status ServeParties(const std::string& listen, const Settings& settings,
                    const std::function<Status(std::string_view address)>& on_listening) {
  WC_ASSIGN_OR_RETURN(SocketAddress address, AddressToListenOn(listen));
  WC_ASSIGN_OR_RETURN(const std::string token, TokenFor(address.Host(), settings));
  const PortRange port{.low = address.port(), .high = address.port()};
  WC_ASSIGN_OR_RETURN(UniqueFd listener, Listen(address, port));
  WC_ASSIGN_OR_RETURN(address, LocalAddressOf(listener.get()));
  WC_RETURN_IF_ERROR(on_listening(address.ToString()));
  Parties parties;
  pollfd polled[] = {{listener.get(), POLLIN, 0}, {StopDescriptor(), POLLIN, 0}};
  while (StopSignal() == 0) {
    if (poll(polled, 2, -1) <= 0 || polled[0].revents == 0) continue;
    auto socket = Accept(listener.get());
    if (socket.ok() && socket->valid()) parties.Start(std::move(*socket), listener, settings, token);
  }
  return Status::Ok();
}

Result<RemoteParty> CallParty(const std::string& connect, const std::string& token, TimePoint deadline) {
  WC_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(connect));
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(place.host, place.port));
  Status status;
  for (const SocketAddress& address : addresses) {
    auto socket = Connect(address, deadline);
    status = socket.status();
    if (!status.ok()) continue;
    TuneTcp(socket->get(), kUserTimeout);
    WC_ASSIGN_OR_RETURN(std::string local, LocalHostOf(socket->get()));
    RemoteParty party{.channel = BenchChannel(std::move(*socket)), .local_address = std::move(local)};
    const std::string own = Nonce();
    WC_RETURN_IF_ERROR(party.channel.Send(StrCat(kGreeting, own)));
    const TimePoint proof_by = std::min(deadline, Clock::now() + FromSeconds(kProofSeconds));
    WC_ASSIGN_OR_RETURN(const std::string theirs, party.channel.Receive(proof_by, kMaxProof));
    const std::string nonces = StrCat(own, theirs);
    WC_RETURN_IF_ERROR(party.channel.Send(Proof(token, "caller", nonces)));
    WC_ASSIGN_OR_RETURN(const std::string proof, party.channel.TakeAnswer(proof_by));
    WC_RETURN_IF_ERROR(Verify(proof, Proof(token, "called", nonces)));
    return party;
  }
  return status;
}

}  // namespace weightcast::tools
