#include "tools/doctor/hosts.h"

#include <poll.h>

#include <algorithm>
#include <atomic>

#include "base/poller.h"
#include "base/socket.h"
#include "base/strings.h"
#include "control/token.h"
#include "doctor/report.h"
#include "peertest/check_peer.h"
#include "peertest/messages.h"
#include "peertest/server.h"
#include "peertest/target.h"
#include "peertest/test.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "tools/common/stop.h"
#include "tools/doctor/cluster.h"
#include "tools/doctor/verdict.h"
#include "weightcast/version.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kLeastMilliseconds = 50;
constexpr int64_t kMostMilliseconds = static_cast<int64_t>(peertest::kMostPlanSeconds * 1e3);
constexpr int64_t kLongestServe = 7 * 24 * 3600;

/// Without a token that was chosen, only this machine is served.
Status CheckReach(const HostPort& listen, const control::Token& token) {
  if (token.configured()) return Status::Ok();
  WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(listen.host, listen.port));
  if (std::ranges::all_of(addresses, [](const SocketAddress& one) { return one.IsLoopback(); }))
    return Status::Ok();
  return Error(Code::kPermission, "without a job token --serve does not listen on ", listen.host,
               ": set WEIGHTCAST_TOKEN_FILE to the same file on all hosts, or --listen 127.0.0.1:",
               static_cast<int>(listen.port));
}

/// A trainer's, from the job's token or from one that was made for a worker.
Result<stream::RoleToken> TokenToTest(const control::Token& token) {
  WC_ASSIGN_OR_RETURN(stream::RoleToken role, token.ForObserver());
  if (role.member().role != stream::Role::kObserver) return role;
  auto trainer = token.ForWorker({.role = stream::Role::kTrainer});
  if (trainer.ok()) return trainer;
  return Error(Code::kPermission, "the token in ", token.origin(),
               " may only watch; set WEIGHTCAST_TOKEN_FILE to the job's token, or to a trainer's");
}

}  // namespace

void HostTests::Declare(Flags& flags) {
  flags.Add("--serve", serve_, "Take part in tests of other hosts, until a signal");
  flags.Add(
      "--listen", listen_, "HOST:PORT",
      "With --serve: where to listen; default: port 29751 of all addresses. Other addresses than loopback "
      "need the job's token");
  flags.Add("--once", once_, "With --serve: end after one test by --peer");
  flags.Add("--limit", limit_, 0, kLongestServe, "With --serve: end after so many seconds; 0: not");
  flags.Add("--peer", peer_, "HOST[:PORT]", "Test the way to a host where `weightcast doctor --serve` runs");
  flags.Add("--cluster", cluster_, "FILE",
            "Test all pairs of the hosts in this file, one host[:port] a line; --serve runs on each");
  flags.Add("--workers", workers_, "Test all pairs of the hosts on which the workers of --controller are");
  flags.Add("--html", html_, "FILE", "With --cluster or --workers: also write a page");
  flags.Add("--milliseconds", milliseconds_, kLeastMilliseconds, kMostMilliseconds,
            "With --peer, --cluster and --workers: of each measurement");
}

Status HostTests::CheckFlags() const {
  const int chosen =
      (serve_ ? 1 : 0) + (peer_.empty() ? 0 : 1) + (cluster_.empty() ? 0 : 1) + (workers_ ? 1 : 0);
  if (chosen > 1)
    return {Code::kInvalidArgument,
            "more than one of --serve, --peer, --cluster and --workers was given; give one"};
  if (!serve_ && (!listen_.empty() || once_ || limit_ != 0))
    return {Code::kInvalidArgument,
            "--listen, --once and --limit belong to --serve; add it, or leave them out"};
  if (!html_.empty() && cluster_.empty() && !workers_)
    return {Code::kInvalidArgument, "--html belongs to --cluster and --workers; add one, or leave it out"};
  return Status::Ok();
}

Status HostTests::Run(const Context& context) {
  WC_RETURN_IF_ERROR(CheckFlags());
  return serve_ ? Serve(context) : Test(context);
}

Status HostTests::Serve(const Context& context) {
  const std::string listen =
      listen_.empty() ? StrCat("0.0.0.0:", static_cast<int>(peertest::kDefaultPort)) : listen_;
  WC_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(listen));
  WC_ASSIGN_OR_RETURN(const control::Token token, control::LoadToken(context.settings));
  WC_ASSIGN_OR_RETURN(const stream::MasterToken master, token.Master());
  WC_RETURN_IF_ERROR(CheckReach(place, token));
  WC_ASSIGN_OR_RETURN(const WakeFd over, WakeFd::Create());
  auto server = peertest::TestServer::Start({.host = place.host,
                                             .port = place.port,
                                             .master = master,
                                             .settings = context.settings,
                                             .on_over = [&] { over.Wake(); }});
  if (!server.ok() && server.status().code() == Code::kExhausted)
    return Error(Code::kExhausted, "cannot serve tests at ", listen, ": ", server.status().message());
  if (!server.ok())
    return Error(server.status().code(), server.status().message(), "; give another port with --listen");
  const std::string address = peertest::TargetText({.host = place.host, .port = (*server)->port()});
  WC_RETURN_IF_ERROR(
      Print(context.json ? JsonLine({{"address", address}}) : StrCat("serving tests at ", address, "\n")));
  const TimePoint until = limit_ == 0 ? kNever : In(static_cast<double>(limit_));
  while (StopSignal() == 0 && Clock::now() < until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd polled[] = {{over.fd(), POLLIN, 0}, {StopDescriptor(), POLLIN, 0}};
    poll(polled, 2, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (polled[0].revents == 0) continue;
    over.Drain();
    if (once_) break;
  }
  return Status::Ok();
}

Status HostTests::Test(const Context& context) {
  WC_ASSIGN_OR_RETURN(const control::Token token, control::LoadToken(context.settings));
  WC_ASSIGN_OR_RETURN(stream::RoleToken role, TokenToTest(token));
  const peertest::TestMeans means{.settings = context.settings, .token = std::move(role), .interrupted = [] {
                                    return StopSignal() != 0;
                                  }};
  if (peer_.empty())
    return TestCluster({.file = cluster_, .html = html_, .seconds = seconds()}, means, context);
  return TestPeer(means, context.json);
}

Status HostTests::TestPeer(const peertest::TestMeans& means, bool json) const {
  WC_ASSIGN_OR_RETURN(const HostPort place, peertest::ParseTarget(peer_));
  ProgressBar bar;
  double part = 0;
  peertest::TestMeans shown = means;
  shown.on_step = [&](std::string_view step) { bar.Show(part = std::min(1.0, part + 0.2), step); };
  const peertest::PeerFacts facts =
      peertest::RunTest(peertest::TargetText(place), {.seconds = seconds()}, shown);
  bar.Clear();
  WC_RETURN_IF_ERROR(CheckStop());
  auto findings = peertest::CheckPeer(facts);
  doctor::SortFindings(findings);
  if (!json) {
    WC_RETURN_IF_ERROR(Print(doctor::FindingsText(findings)));
    return VerdictOf(findings);
  }
  WC_RETURN_IF_ERROR(Print(StrCat(
      R"({"weightcast":")", LibraryVersion(), R"(","worst":")", doctor::NameOf(doctor::WorstOf(findings)),
      R"(","peer":)", peertest::Encode(facts), R"(,"findings":)", doctor::FindingsJson(findings), "}\n")));
  return VerdictOf(findings);
}

}  // namespace weightcast::tools
