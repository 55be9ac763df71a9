#include "tools/doctor/cluster.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/socket.h"
#include "base/strings.h"
#include "checkpoint/files.h"
#include "control/client.h"
#include "doctor/report.h"
#include "peertest/check_cluster.h"
#include "peertest/cluster.h"
#include "peertest/cluster_report.h"
#include "peertest/messages.h"
#include "peertest/target.h"
#include "tools/common/files.h"
#include "tools/common/in_file.h"
#include "tools/common/output.h"
#include "tools/common/stop.h"
#include "tools/doctor/verdict.h"
#include "weightcast/version.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMostFile = 64 << 10;

/// Of each host the address that its workers tell first, which is the best to reach them at.
Result<std::vector<std::string>> HostsOfWorkers(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const auto view, control::GetView(settings, In(settings.connect_timeout)));
  std::set<std::string> seen;
  std::string lines;
  for (const auto& model : view.models) {
    for (const auto& worker : model.workers) {
      if (!worker.alive || worker.addresses.empty() || !seen.insert(worker.host).second) continue;
      const auto address = SocketAddress::Parse(worker.addresses.front());
      if (!address.ok()) continue;
      lines += StrCat(peertest::TargetText({.host = address->Host(), .port = peertest::kDefaultPort}), "\n");
    }
  }
  if (std::ranges::count(lines, '\n') < 2)
    return Error(
        Code::kInvalidArgument, "only ", std::ranges::count(lines, '\n'), " of the ", seen.size(),
        " hosts with workers of the controller at ", settings.controller,
        " tell a numeric address (setting advertise), and --workers needs two; name hosts in a file, with "
        "--cluster");
  auto hosts = peertest::ParseHostsFile(lines);
  if (hosts.ok()) return hosts;
  return Error(Code::kInvalidArgument, "the hosts of the workers of the controller at ", settings.controller,
               " cannot be tested: ", hosts.status().message(), "; or name hosts in a file, with --cluster");
}

Result<std::vector<std::string>> HostsOf(const ClusterTest& test, const Settings& settings) {
  if (test.file.empty()) return HostsOfWorkers(settings);
  WC_ASSIGN_OR_RETURN(const std::string text, checkpoint::ReadTextFile(test.file, kMostFile));
  return InFile(test.file, peertest::ParseHostsFile(text));
}

}  // namespace

Status TestCluster(const ClusterTest& test, const peertest::TestMeans& means, const Context& context) {
  WC_ASSIGN_OR_RETURN(std::vector<std::string> hosts, HostsOf(test, context.settings));
  ProgressBar bar;
  const peertest::ClusterFacts facts = peertest::RunCluster(
      {.targets = std::move(hosts),
       .test = {.seconds = test.seconds, .all_sizes = false, .classes = false},
       .doubtful = peertest::DoubtfulPairs,
       .on_progress =
           [&](size_t done, size_t all) {
             bar.Show(static_cast<double>(done) / static_cast<double>(std::max<size_t>(all, 1)),
                      StrCat(done, " of ", all, " tests"));
           }},
      means);
  bar.Clear();
  WC_RETURN_IF_ERROR(CheckStop());
  const peertest::Matrix matrix = peertest::MatrixOf(facts);
  auto findings = peertest::CheckCluster(facts);
  doctor::SortFindings(findings);
  if (!test.html.empty())
    WC_RETURN_IF_ERROR(
        WriteFileAtomically(test.html, peertest::ClusterHtml(facts, matrix, findings, LibraryVersion())));
  WC_RETURN_IF_ERROR(Print(context.json
                               ? peertest::ClusterJson(facts, matrix, findings, LibraryVersion())
                               : StrCat(peertest::MatrixText(matrix), "\n", doctor::FindingsText(findings))));
  return VerdictOf(findings);
}

}  // namespace weightcast::tools
