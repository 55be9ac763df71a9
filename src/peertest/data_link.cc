#include "peertest/data_link.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/advice.h"
#include "base/bytes.h"
#include "base/strings.h"
#include "peertest/hex.h"

namespace weightcast::peertest {
namespace {

constexpr uint64_t kInFlight = 1 << 20;  ///< Bytes, about.
constexpr uint64_t kFewestInFlight = 2;
constexpr uint64_t kMost = 16;
constexpr auto kMeet = std::chrono::seconds(5);
constexpr auto kPatience = std::chrono::seconds(5);  ///< With one transfer, and with one answer.
constexpr auto kArrivalLook = std::chrono::milliseconds(100);
constexpr uint32_t kPingBytes = 8;

}  // namespace

/// The connection that the peer opens.
class DataLink::Arrival {
 public:
  void Take(const Connection& connection) {
    const std::lock_guard lock(mutex_);
    connection_ = connection;
    changed_.notify_all();
  }
  std::optional<Connection> Wait(TimePoint until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return connection_.has_value(); });
    return connection_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Connection> connection_;
};

DataLink::DataLink(Options options)
    : options_(std::move(options)), memory_(2 * kMostWrite), arrival_(std::make_shared<Arrival>()) {}

Result<std::unique_ptr<DataLink>> DataLink::Open(Options options) {
  std::unique_ptr<DataLink> made(new DataLink(std::move(options)));
  WC_RETURN_IF_ERROR(made->Begin());
  return made;
}

Status DataLink::Begin() {
  EndpointOptions options;
  options.self = {.job = "doctor", .role = "doctor", .engine = "", .rank = options_.rank};
  options.token = options_.key;
  options.settings = options_.settings;
  options.settings.transport = options_.transport;
  options.settings.connect_timeout = kMeet;
  options.interrupted = options_.interrupted;
  if (options.settings.bind.empty() && options.settings.advertise.empty() &&
      options.settings.interface.empty())
    options.settings.bind = options_.address;
  options.on_connection = [arrival = arrival_](const Connection& connection) { arrival->Take(connection); };
  WC_ASSIGN_OR_RETURN(endpoint_, Endpoint::Create(std::move(options)));
  WC_ASSIGN_OR_RETURN(Region region, endpoint_->Register(std::span(memory_), Access::kReadWrite));
  region_.emplace(std::move(region));
  place_ = {.addresses = endpoint_->Addresses(),
            .incarnation = endpoint_->self().incarnation,
            .descriptor = ToHex(region_->Descriptor())};
  return Status::Ok();
}

Identity DataLink::Peer(Incarnation incarnation) const {
  return {.job = "doctor",
          .role = "doctor",
          .engine = "",
          .rank = options_.rank == 0 ? 1U : 0U,
          .incarnation = incarnation};
}

Status DataLink::Connect(const LinkPlace& peer) {
  WC_ASSIGN_OR_RETURN(Connection connection,
                      endpoint_->Connect(peer.addresses, Peer(peer.incarnation), In(kMeet)));
  return Meet(std::move(connection), peer);
}

Status DataLink::Await(const LinkPlace& peer) {
  for (const TimePoint deadline = In(kMeet + std::chrono::seconds(1)); Clock::now() < deadline;) {
    WC_RETURN_IF_ERROR(CheckStop());
    if (auto connection = arrival_->Wait(In(kArrivalLook))) return Meet(std::move(*connection), peer);
  }
  return {Code::kTimedOut,
          "the other host's data connection has not arrived; give setting port_range on both hosts, such as "
          "29800-29899, and open these ports in the firewalls"};
}

Status DataLink::Meet(Connection connection, const LinkPlace& peer) {
  if (!(connection.peer() == Peer(peer.incarnation)))
    return Error(Code::kProtocol, "a process of another test (", ToString(connection.peer()),
                 ") has connected, instead of the other host of this test; run the test again");
  if (connection.transport_name() != options_.transport)
    return Error(Code::kUnavailable, "the connection of this test was to be over ", options_.transport,
                 " only and is: ", connection.Describe(), kReportBug);
  const auto descriptor = FromHex(peer.descriptor);
  if (!descriptor)
    return {Code::kProtocol,
            "the other host sent a malformed descriptor of its memory; use the same weightcast on both"};
  WC_ASSIGN_OR_RETURN(remote_, connection.Import(*descriptor));
  if (remote_.length() < memory_.size())
    return Error(Code::kProtocol, "the other host offers ", remote_.length(),
                 " bytes of memory, fewer than the ", memory_.size(),
                 " of this host; use the same weightcast on both");
  connection_.emplace(std::move(connection));
  return Status::Ok();
}

std::string DataLink::Describe() const { return connection_ ? connection_->Describe() : ""; }

Status DataLink::CheckStop() const {
  if (!options_.interrupted || !options_.interrupted()) return Status::Ok();
  return {Code::kCancelled, "the test was stopped by a signal to this process; run the test again"};
}

Result<GrantName> DataLink::TradeGrants(const GrantName& ours) {
  WC_RETURN_IF_ERROR(connection_->Notify(PackBytes(ours.slot, ours.id)));
  WC_ASSIGN_OR_RETURN(const std::string notice, connection_->TakeNotice(In(kPatience)));
  ByteReader in(notice);
  GrantName theirs;
  in.Get(theirs.slot, theirs.id);
  if (!in.AtEnd())
    return Error(Code::kProtocol, "the other host sent a malformed notice of ", notice.size(),
                 " bytes; use the same weightcast on both");
  return theirs;
}

Status DataLink::PingOnce(bool first, uint32_t number, const GrantName& ours, const GrantName& theirs,
                          std::optional<Transfer>& write) {
  constexpr uint32_t kArrivalLooks = 64;
  if (number % kArrivalLooks == 0) WC_RETURN_IF_ERROR(CheckStop());
  if (!first) WC_RETURN_IF_ERROR(connection_->WaitGrant(ours, number + 1, In(kPatience)));
  if (write) WC_RETURN_IF_ERROR(write->Wait());  // Its answer is here: it has arrived.
  WC_ASSIGN_OR_RETURN(const LocalSlice local, region_->Slice(0, kPingBytes));
  WC_ASSIGN_OR_RETURN(const RemoteSlice remote, remote_.Slice(kMostWrite, kPingBytes));
  const Piece piece{local, remote};
  WC_ASSIGN_OR_RETURN(
      write, connection_->Write({&piece, 1}, {.grant = theirs, .signal = number, .deadline = In(kPatience)}));
  return first ? connection_->WaitGrant(ours, number + 1, In(kPatience)) : Status::Ok();
}

Result<std::vector<double>> DataLink::Ping(uint32_t count) {
  if (!connection_)
    return Error(Code::kInternal, "a ping over ", options_.transport, " was begun before its connection",
                 kReportBug);
  WC_ASSIGN_OR_RETURN(const GrantName ours, connection_->OpenGrant({.transfers = count}));
  Status status;
  std::vector<double> times;
  std::optional<Transfer> write;
  auto theirs = TradeGrants(ours);
  status = theirs.status();
  TimePoint last = Clock::now();
  for (uint32_t i = 0; i < count && status.ok(); ++i) {
    status = PingOnce(true, i, ours, *theirs, write);
    const TimePoint now = Clock::now();
    times.push_back(weightcast::Seconds(now - last) / 2);
    last = now;
  }
  if (write) (void)write->Wait();
  connection_->RevokeGrant(ours, {});
  WC_RETURN_IF_ERROR(status);
  return times;
}

Status DataLink::Pong(uint32_t count) {
  if (!connection_)
    return {Code::kInvalidArgument,
            "the client asked for a ping before the connection; use the same weightcast on both"};
  WC_ASSIGN_OR_RETURN(const GrantName ours, connection_->OpenGrant({.transfers = count}));
  std::optional<Transfer> write;
  auto theirs = TradeGrants(ours);
  Status status = theirs.status();
  for (uint32_t i = 0; i < count && status.ok(); ++i) status = PingOnce(false, i, ours, *theirs, write);
  if (write && status.ok()) status = write->Wait();
  connection_->RevokeGrant(ours, {});
  return status;
}

Result<Rate> DataLink::Write(uint64_t bytes, double seconds) {
  if (!connection_)
    return Status(Code::kInvalidArgument,
                  "the client asked for a write before the connection; use the same weightcast on both");
  WC_ASSIGN_OR_RETURN(const LocalSlice local, region_->Slice(0, bytes));
  WC_ASSIGN_OR_RETURN(const RemoteSlice remote, remote_.Slice(kMostWrite, bytes));
  const Piece piece{local, remote};
  const uint64_t window = std::clamp(kInFlight / bytes, kFewestInFlight, kMost);
  std::deque<Transfer> flying;
  const TimePoint begin = Clock::now();
  // Connections begin slowly: a quarter of the time is not counted, where enough is left.
  const TimePoint warm = begin + FromSeconds(seconds / 4);
  const TimePoint end = begin + FromSeconds(seconds);
  TimePoint from = begin;
  TimePoint last = begin;
  int64_t counted = 0;
  bool warmed = false;
  Status status;
  for (;;) {
    status = CheckStop();
    while (status.ok() && flying.size() < window && Clock::now() < end) {
      auto transfer = connection_->Write({&piece, 1}, {.deadline = In(kPatience)});
      status = transfer.status();
      if (transfer.ok()) flying.push_back(std::move(*transfer));
    }
    if (!status.ok() || flying.empty()) break;
    status = flying.front().Wait();
    if (!status.ok()) break;
    flying.pop_front();
    last = Clock::now();
    ++counted;
    if (!warmed && last >= warm && last < end - FromSeconds(seconds / 4)) {
      warmed = true;
      from = last;
      counted = 0;
    }
  }
  for (Transfer& one : flying) {
    one.Cancel();
    (void)one.WaitFenced(In(kPatience));
  }
  WC_RETURN_IF_ERROR(status);
  const double taken = weightcast::Seconds(last - from);
  Rate rate{.bytes = static_cast<int64_t>(bytes), .transfers = counted};
  if (taken > 0) rate.gbit = static_cast<double>(counted) * static_cast<double>(bytes) * 8e-9 / taken;
  return rate;
}

}  // namespace weightcast::peertest
