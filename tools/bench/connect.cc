#include "tools/bench/connect.h"

#include <sys/resource.h>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "base/thread.h"
#include "tools/bench/processes.h"
#include "tools/common/codec.h"
#include "weightcast/clock.h"
#include "weightcast/endpoint.h"

namespace weightcast::tools {
namespace {

/// Connections that one process makes at the same time: as many as a trainer that prepares a plan.
constexpr size_t kThreads = 16;
/// Of a process without connections: what it inherits, its endpoint, its transports.
constexpr uint64_t kOwnDescriptors = 48;
/// Of the process that measures, beside the sockets to the others.
constexpr uint64_t kParentDescriptors = 16;
/// Of a connection at one end: the control socket, and another that is being tried or about to close.
constexpr uint64_t kControlDescriptors = 2;
constexpr uint64_t kTcpLanes = 2;
/// The socket, the process and, while it is set up, the memory of a link.
constexpr uint64_t kShmDescriptors = 3;

/// How others find a listening process.
struct ConnectPlace {
  uint32_t rank = 0;
  Incarnation incarnation = 0;
  std::vector<std::string> addresses;
};
constexpr auto Fields(Is<ConnectPlace> auto& m, auto&& visit) {
  return visit(F("rank", m.rank), F("incarnation", m.incarnation, protocol::Fixed{}),
               F("addresses", m.addresses, protocol::kAddresses));
}
struct ConnectPlaces {
  std::vector<ConnectPlace> list;
};
constexpr auto Fields(Is<ConnectPlaces> auto& m, auto&& visit) {
  return visit(F("list", m.list, List{protocol::kMaxWorkers}));
}

/// Of one process and round: seconds of the clock that all processes of a machine share.
struct ConnectSpan {
  double begin = 0;
  double end = 0;
};
constexpr auto Fields(Is<ConnectSpan> auto& m, auto&& visit) {
  return visit(F("begin", m.begin), F("end", m.end));
}
double SecondsAt(TimePoint time) { return Seconds(time.time_since_epoch()); }

/// The connections that come in.
class Arrivals {
 public:
  void Take(const Connection& connection) {
    const std::lock_guard lock(mutex_);
    if (!connection.status().ok()) return;
    peers_.insert(connection.peer().incarnation);
    last_ = Clock::now();
    changed_.notify_all();
  }
  /// When the last of `count` had come.
  Result<TimePoint> WaitFor(size_t count, Duration patience, int64_t rank) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, patience, [&] { return peers_.size() >= count; })) return last_;
    return Error(Code::kTimedOut, "process ", rank, " of the benchmark has got only ", peers_.size(), " of ",
                 count, " connections within ", Seconds(patience),
                 " s (setting connect_timeout); raise it, or run this where cores are idle");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Incarnation> peers_;
  TimePoint last_;
};

/// What one of the processes does.
class Member {
 public:
  Member(const ConnectCase& what, const Settings& settings, std::string token, int64_t rank,
         const BenchParent& parent)
      : what_(what), settings_(settings), token_(std::move(token)), rank_(rank), parent_(parent) {
    if (what.transport != "any") settings_.transport = what.transport;
    if (settings_.bind.empty() && settings_.advertise.empty() && settings_.interface.empty())
      settings_.bind = "127.0.0.1";
  }

  Status Run() {
    for (int64_t round = 0; round < what_.rounds; ++round) {
      const Status status = RunRound();
      // The reason is to be told before the others see this process go: its end closes what is open.
      [[maybe_unused]] const Endpoint* kept = status.ok() ? nullptr : endpoint_.release();
      WC_RETURN_IF_ERROR(status);
      endpoint_.reset();
    }
    return parent_.Report({});
  }

 private:
  [[nodiscard]] bool connects() const { return rank_ < what_.connecting(); }
  [[nodiscard]] size_t peers() const {
    return static_cast<size_t>(connects() ? what_.listening() : what_.connecting());
  }
  [[nodiscard]] TimePoint Patience() const { return Clock::now() + settings_.connect_timeout; }

  Status RunRound() {
    SetLogLevel(log_level_);
    const auto arrivals = std::make_shared<Arrivals>();
    EndpointOptions options;
    options.self = {.job = "bench", .role = "bench", .engine = "", .rank = static_cast<uint32_t>(rank_)};
    options.token = token_;
    options.settings = settings_;
    // Asked as workers are, who choose their peers by role.
    options.admit = [](const Identity& peer) {
      return peer.role == "bench"
                 ? Status::Ok()
                 : Status(Code::kPermission,
                          "only processes of this benchmark may connect; use another address");
    };
    options.on_connection = [arrivals](const Connection& connection) { arrivals->Take(connection); };
    WC_ASSIGN_OR_RETURN(endpoint_, Endpoint::Create(std::move(options)));
    const ConnectPlace place{.rank = static_cast<uint32_t>(rank_),
                             .incarnation = endpoint_->self().incarnation,
                             .addresses = endpoint_->Addresses()};
    WC_RETURN_IF_ERROR(parent_.Report(EncodeStruct(place)));
    WC_ASSIGN_OR_RETURN(const std::string go, parent_.Next());
    const TimePoint begin = Clock::now();
    TimePoint end;
    if (connects()) {
      WC_RETURN_IF_ERROR(ConnectToAll(go));
      end = Clock::now();
    } else {
      WC_ASSIGN_OR_RETURN(end, arrivals->WaitFor(peers(), settings_.connect_timeout, rank_));
    }
    WC_RETURN_IF_ERROR(CheckPeers());
    // When all have come so far, all leave at once: that the others go is no error.
    SetLogLevel(LogLevel::kError);
    WC_RETURN_IF_ERROR(parent_.Report(EncodeStruct(ConnectSpan{SecondsAt(begin), SecondsAt(end)})));
    return parent_.Next().status();
  }

  Status ConnectToAll(std::string_view go) const {
    WC_ASSIGN_OR_RETURN(const ConnectPlaces found, DecodeStruct<ConnectPlaces>(go));
    const auto& places = found.list;
    const TimePoint deadline = Patience();
    std::vector<Status> outcomes(places.size());
    ForEachInParallel(places.size(), kThreads, [&](size_t i) {
      const Identity expected{.job = "bench",
                              .role = "bench",
                              .engine = "",
                              .rank = places[i].rank,
                              .incarnation = places[i].incarnation};
      outcomes[i] = endpoint_->Connect(places[i].addresses, expected, deadline).status();
    });
    for (const Status& outcome : outcomes) WC_RETURN_IF_ERROR(outcome);
    return Status::Ok();
  }

  Status CheckPeers() const {
    const auto live = endpoint_->Peers();
    if (live.size() != peers()) {
      return Error(Code::kUnavailable, "process ", rank_, " of the benchmark has ", live.size(),
                   " connections instead of ", peers(),
                   "; see the output above, and run this where cores are idle");
    }
    for (const PeerInfo& peer : live) {
      if (what_.transport != "any" && peer.transport != what_.transport)
        return Error(Code::kUnavailable, "process ", rank_, " of the benchmark was to connect over ",
                     what_.transport, " only and has: ", peer.description,
                     "; please report this as a bug, with the command line");
    }
    return Status::Ok();
  }

  const ConnectCase& what_;
  Settings settings_;
  const std::string token_;
  const int64_t rank_;
  const BenchParent& parent_;
  const LogLevel log_level_ = GetLogLevel();
  std::unique_ptr<Endpoint> endpoint_;
};

Status CheckLimit(const ConnectCase& what, const Settings& settings) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return Status::Ok();
  const uint64_t needed =
      std::max(DescriptorsFor(what, settings), static_cast<uint64_t>(what.processes) + kParentDescriptors);
  if (needed <= limit.rlim_cur) return Status::Ok();
  return Error(Code::kExhausted, what.processes, " processes with ", what.listening(),
               " connections each may need ", needed, " descriptors a process over ", what.transport,
               "; the limit is ", limit.rlim_cur, ": raise it (ulimit -n ", needed,
               ") or give fewer --processes");
}

Result<ConnectRound> RunRound(const BenchProcesses& members, const ConnectCase& what, Duration patience) {
  WC_ASSIGN_OR_RETURN(const auto places, members.Gather(Clock::now() + patience));
  ConnectPlaces listening;
  const auto connecting = static_cast<size_t>(what.connecting());
  for (size_t i = connecting; i < places.size(); ++i) {
    WC_ASSIGN_OR_RETURN(listening.list.emplace_back(), DecodeStruct<ConnectPlace>(places[i]));
  }
  const std::string list = EncodeStruct(listening);
  const double all_listen = SecondsAt(Clock::now());
  for (size_t i = 0; i < places.size(); ++i)
    WC_RETURN_IF_ERROR(members.Tell(i, i < connecting ? list : "go"));
  WC_ASSIGN_OR_RETURN(const auto reports, members.Gather(Clock::now() + patience));
  double begin = std::numeric_limits<double>::infinity();
  double end = all_listen;
  for (size_t i = 0; i < reports.size(); ++i) {
    WC_ASSIGN_OR_RETURN(const ConnectSpan span, DecodeStruct<ConnectSpan>(reports[i]));
    if (i < connecting) begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
  WC_RETURN_IF_ERROR(members.TellAll("over"));
  return ConnectRound{.together = end - all_listen, .calls = end - begin};
}

}  // namespace

uint64_t DescriptorsFor(const ConnectCase& what, const Settings& settings) {
  const uint64_t lanes = settings.lanes > 0 ? static_cast<uint64_t>(settings.lanes) : kTcpLanes;
  uint64_t each = kControlDescriptors;
  if (what.transport != "shm") each += lanes;
  if (what.transport != "tcp") each += kShmDescriptors;
  return kOwnDescriptors + static_cast<uint64_t>(what.listening()) * each;
}

Result<std::vector<ConnectRound>> MeasureConnect(const ConnectCase& what, const Settings& settings,
                                                 const std::function<void(size_t round)>& on_round) {
  WC_RETURN_IF_ERROR(CheckLimit(what, settings));
  const std::string token = StrCat(RandomId(), RandomId());
  // Beyond what the processes allow themselves, so that their reason is the one that is told.
  const Duration patience = settings.connect_timeout + settings.lease + std::chrono::seconds(30);
  BenchProcesses members;
  for (int64_t rank = 0; rank < what.processes; ++rank) {
    WC_RETURN_IF_ERROR(members.Start(
        [&](const BenchParent& parent) { return Member(what, settings, token, rank, parent).Run(); }));
  }
  std::vector<ConnectRound> rounds;
  for (int64_t round = 0; round < what.rounds; ++round) {
    WC_ASSIGN_OR_RETURN(const ConnectRound one, RunRound(members, what, patience));
    rounds.push_back(one);
    on_round(rounds.size());
  }
  WC_RETURN_IF_ERROR(members.Gather(Clock::now() + patience).status());
  return rounds;
}

}  // namespace weightcast::tools
