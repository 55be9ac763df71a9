#include "stream/connector.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "base/strings.h"
#include "stream/explain.h"
#include "stream/proof.h"

namespace weightcast::stream {
namespace {

constexpr uint64_t kResolverKey = 0;
constexpr auto kStagger = std::chrono::milliseconds(250);  // RFC 8305, section 5.

/// Which failure says most of why there is no controller: one address may just have nobody.
int Weight(const Status& status) {
  if (status.ok()) return 0;
  if (status.code() == Code::kPermission) return 4;
  if (status.code() == Code::kProtocol) return 3;
  return status.code() == Code::kExhausted ? 2 : 1;
}

/// One for all connectors of the process: OpenSSL takes a quarter of a millisecond to make it.
Result<TlsContext> ContextOf(uint32_t version) {
  static std::mutex mutex;
  static auto& made =
      *new std::map<uint32_t, TlsContext>;  // Threads may still connect when the process ends.
  const std::lock_guard lock(mutex);
  if (const auto at = made.find(version); at != made.end()) return at->second;
  WC_ASSIGN_OR_RETURN(TlsContext context, TlsContext::Make(TlsContext::Side::kClient, ProtocolName(version)));
  return made.emplace(version, std::move(context)).first->second;
}

}  // namespace

Result<std::unique_ptr<Connector>> Connector::Create() {
  auto connector = std::unique_ptr<Connector>(new Connector);
  WC_ASSIGN_OR_RETURN(connector->poller_, Poller::Create());
  WC_ASSIGN_OR_RETURN(connector->resolver_, Resolver::Create());
  WC_RETURN_IF_ERROR(connector->poller_.Add(connector->resolver_.fd(), EPOLLIN, kResolverKey));
  return connector;
}

Connector::~Connector() { Cancel(); }

void Connector::Cancel() {
  resolver_.Forget();
  resolving_ = false;
  left_.clear();
  next_ = kNever;
  while (!attempts_.empty()) End(attempts_.begin());
}

void Connector::Start(Options options) {
  Status status = Prepare(std::move(options));
  if (status.ok()) status = resolver_.Start(options_.host, options_.port);
  if (!status.ok()) return Failed(status);
  resolving_ = true;
}

void Connector::StartAt(Options options, std::vector<SocketAddress> addresses) {
  if (const Status status = Prepare(std::move(options)); !status.ok()) return Failed(status);
  ConnectAll(std::move(addresses));
}

Status Connector::Prepare(Options options) {
  Cancel();
  options_ = std::move(options);
  failure_ = Status::Ok();
  WC_ASSIGN_OR_RETURN(context_, ContextOf(options_.version));
  return Status::Ok();
}

TimePoint Connector::deadline() const {
  const bool over = !resolving_ && left_.empty() && attempts_.empty();
  return over ? TimePoint{} : next_;
}

std::optional<Connector::Outcome> Connector::Step() {
  std::array<epoll_event, kMostAddresses> events{};
  const auto count = static_cast<size_t>(poller_.Wait(events, Duration::zero()));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t key = events[i].data.u64;
    const auto at = attempts_.find(key);
    if (key == kResolverKey) TakeAddresses();
    if (at == attempts_.end()) continue;
    const auto outcome = Advance(at->second, key);
    if (!outcome) continue;
    if (outcome->ok()) {
      poller_.Remove(at->second.connection->fd());
      Outcome found = std::move(at->second.connection);
      attempts_.erase(at);
      Cancel();
      return found;
    }
    End(at);
    Failed(*outcome);
    next_ = left_.empty() ? kNever : TimePoint{};
  }
  if (!left_.empty() && Clock::now() >= next_) ConnectNext();
  return Finished();
}

std::optional<Connector::Outcome> Connector::Finished() {
  if (resolving_ || !left_.empty() || !attempts_.empty()) return std::nullopt;
  if (failure_.ok()) return std::nullopt;  // Nothing was started.
  return Outcome(std::exchange(failure_, Status::Ok()));
}

void Connector::TakeAddresses() {
  auto found = resolver_.Take();
  if (!found) return;
  resolving_ = false;
  if (!found->ok()) return Failed(found->status());
  ConnectAll(std::move(**found));
}

void Connector::ConnectAll(std::vector<SocketAddress> addresses) {
  left_ = std::move(addresses);
  if (left_.size() > kMostAddresses) left_.resize(kMostAddresses);
  std::ranges::reverse(left_);
  if (left_.empty())
    return Failed(Error(Code::kUnavailable, "'", options_.host, "' has no address; correct the name or DNS"));
  next_ = TimePoint{};
}

/// The next address that can be begun at all.
void Connector::ConnectNext() {
  const size_t before = attempts_.size();
  while (!left_.empty() && attempts_.size() == before) {
    const SocketAddress address = left_.back();
    left_.pop_back();
    Connect(address);
  }
  next_ = left_.empty() ? kNever : Clock::now() + kStagger;
}

void Connector::Connect(const SocketAddress& address) {
  auto fd = StartConnect(address);
  if (!fd.ok()) return Failed(ExplainConnect(fd.status()));
  const uint64_t key = next_key_++;
  if (const Status status = poller_.Add(fd->get(), EPOLLOUT, key); !status.ok()) return Failed(status);
  attempts_.emplace(key, Attempt{.address = address, .fd = std::move(*fd), .connection = nullptr});
}

std::optional<Status> Connector::Advance(Attempt& attempt, uint64_t key) {
  if (attempt.connection == nullptr) {
    if (const Status status = ConnectOutcome(attempt.fd.get(), attempt.address); !status.ok())
      return ExplainConnect(status);
    Status status = Greet(attempt, key);
    if (!status.ok()) return status;
    return std::nullopt;
  }
  Connection& connection = *attempt.connection;
  const std::string where = attempt.address.ToString();
  if (!connection.HasFrame()) connection.Read();
  if (!connection.tls().established() && !connection.end().ok()) return ExplainHandshake(connection, where);
  if (const Status status = connection.Flush(); !status.ok()) return ExplainHandshake(connection, where);
  auto frame = connection.Next();
  if (!frame.ok()) return ExplainHandshake(connection, where);
  const std::optional<Frame> got = std::move(*frame);
  if (!got) return std::nullopt;
  const std::string proof = got->kind == FrameKind::kProof ? got->body : "";
  Status proven = CheckController(connection.tls(), options_.keys.controller, proof);
  return proven.ok() ? proven : ExplainImpostor(where, proven.message());
}

Status Connector::Greet(Attempt& attempt, uint64_t key) {
  WC_RETURN_IF_ERROR(poller_.Modify(attempt.fd.get(), EPOLLIN, key));
  WC_ASSIGN_OR_RETURN(TlsSession session,
                      TlsSession::Begin(context_.value(), {options_.keys.identity, options_.keys.key}));
  attempt.connection =
      std::make_unique<Connection>(std::move(attempt.fd), std::move(session), options_.most_queued);
  attempt.connection->Take("");
  // A ClientHello and what follows it fit into the socket's buffer.
  if (const Status status = attempt.connection->Flush(); !status.ok())
    return ExplainHandshake(*attempt.connection, attempt.address.ToString());
  return Status::Ok();
}

void Connector::End(AttemptMap::iterator at) {
  const Attempt& attempt = at->second;
  poller_.Remove(attempt.connection != nullptr ? attempt.connection->fd() : attempt.fd.get());
  attempts_.erase(at);
}

void Connector::Failed(const Status& reason) {
  if (Weight(reason) > Weight(failure_)) failure_ = reason;
}

}  // namespace weightcast::stream
