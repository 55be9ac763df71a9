#include "doctor/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "doctor/baseline.h"
#include "doctor/checks.h"
#include "doctor/exports.h"
#include "doctor/facts_json.h"
#include "unit/doctor/machine.h"

namespace weightcast::doctor {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

Report ReportOf(Machine& machine) {
  Report report{.facts = machine.Look(), .findings = {}, .exports = {}, .changes = {}};
  report.findings = CheckAll(report.facts);
  report.exports = ExportsFor(report.facts);
  return report;
}

TEST(Report, HasTheWorstLast) {
  Machine machine;
  machine.PortDown(1, "2: Polling");
  machine.sources.descriptors = 100;
  const Report report = ReportOf(machine);
  EXPECT_EQ(report.findings.back().check, "descriptors");
  EXPECT_EQ(report.findings.back().level, Level::kFail);
  std::vector<std::string> groups;
  for (const Finding& one : report.findings) {
    if (groups.empty() || groups.back() != one.group) groups.push_back(one.group);
  }
  EXPECT_EQ(groups.size(), 9U);
  EXPECT_EQ(groups[7], "rdma");
  EXPECT_EQ(groups[8], "limits");
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr("  FAIL  descriptors: A process may open only 100 files."));
  EXPECT_THAT(text, HasSubstr("        to fix it: ulimit -n"));
  EXPECT_THAT(text, HasSubstr("1 WARN, 1 FAIL\n"));
}

TEST(Report, IsOneLineOfJson) {
  Machine machine;
  machine.sources.shm_bytes = 1;
  const std::string text = ReportJson(ReportOf(machine), "1.2.3");
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["weightcast"], "1.2.3");
  EXPECT_EQ(json["worst"], "warn");
  EXPECT_EQ(json["facts"]["rdma"]["ports"][0]["rate"], "400 Gb/sec (4X NDR)");
  for (const char* member : {"level", "group", "check", "subject", "text", "evidence", "remedy"})
    EXPECT_TRUE(json["findings"][0].contains(member)) << member;
}

TEST(Report, HasNoSecrets) {
  Machine machine;
  machine.sources.environment = {{"WEIGHTCAST_TOKEN", "geheim"},          {"NCCL_API_KEY", "geheim"},
                                 {"AWS_SECRET_ACCESS_KEY", "geheim"},     {"HOME", "geheim"},
                                 {"WEIGHTCAST_TOKEN_FILE", "/job.token"}, {"NCCL_DEBUG", "INFO"}};
  const std::string text = ReportJson(ReportOf(machine), "1.2.3");
  EXPECT_THAT(text, Not(HasSubstr("geheim")));
  EXPECT_THAT(text, HasSubstr("\"WEIGHTCAST_TOKEN\":\"(removed)\""));
  EXPECT_THAT(text, HasSubstr("\"NCCL_DEBUG\":\"INFO\""));
  EXPECT_THAT(text, HasSubstr("/job.token"));
}

TEST(FactsJson, ComesBackWhole) {
  Machine machine;
  Facts facts = machine.Look();
  facts.route = {.target = "a:1", .source = "b", .interface = "c", .error = "d"};
  facts.clock = {.reference = "e", .ahead_seconds = 1.5, .error = "f", .synchronised = true};
  const std::string json = FactsJson(facts);
  Facts other;
  const Json members = Json::parse(json);
  for (const auto& [name, value] : members.items()) ASSERT_TRUE(AddFacts(json, name, other).ok()) << name;
  EXPECT_EQ(FactsJson(other), json);
  EXPECT_EQ(other.rdma.ports.size(), 3U);
  EXPECT_EQ(other.limits.memlock_bytes, kNoLimit);
  EXPECT_EQ(AddFacts("{\"rdma\": 7}", "rdma", other).code(), Code::kCorrupt);
  EXPECT_EQ(AddFacts("", "rdma", other).code(), Code::kCorrupt);
}

TEST(Baseline, NamesWhatHasChanged) {
  Machine machine;
  const std::string before = ReportJson(ReportOf(machine), "1.2.3");
  EXPECT_THAT(*ChangesSince(before, machine.Look()), IsEmpty());
  machine.sys.Write(StrCat(Machine::Port(1), "/rate"), "100 Gb/sec (4X EDR)");
  machine.sys.Write("fs/cgroup/user.slice/memory.current", "2000000");  // Changes by itself.
  machine.sources.kernel = "6.8.0-46-generic";
  EXPECT_THAT(*ChangesSince(before, machine.Look()),
              ElementsAre("host.kernel: 6.8.0-45-generic -> 6.8.0-46-generic",
                          "rdma.ports[mlx5_1:1].rate: 400 Gb/sec (4X NDR) -> 100 Gb/sec (4X EDR)"));
  Facts missed = machine.Look();
  missed.pcie = {};
  missed.missed["pcie"] = "gave no answer within 3 s";
  const auto changes = ChangesSince(before, missed);
  EXPECT_THAT(*changes, Contains(HasSubstr("missed.pcie: (none) -> gave no answer")));
  EXPECT_THAT(*changes, Each(Not(StartsWith("pcie."))));
  EXPECT_EQ(ChangesSince("{}", machine.Look()).status().code(), Code::kCorrupt);
  EXPECT_EQ(ChangesSince("no JSON", machine.Look()).status().code(), Code::kCorrupt);
}

TEST(Exports, NameWhatWorks) {
  Machine machine;
  machine.PortDown(1, "2: Polling");
  machine.rest.Write("proc/sys/kernel/yama/ptrace_scope", "1");
  machine.sources.settings.traffic_class = "af31";
  EXPECT_EQ(ExportsText(ExportsFor(machine.Look())),
            "export GLOO_SOCKET_IFNAME=eth0\n"
            "export NCCL_IB_GID_INDEX=3\n"
            "export NCCL_IB_HCA='=mlx5_0:1,mlx5_2:1'\n"
            "export NCCL_IB_TC=104\n"
            "export NCCL_SOCKET_IFNAME='=eth0'\n"
            "export WEIGHTCAST_NICS=mlx5_0:1,mlx5_2:1\n"
            "export WEIGHTCAST_PTRACER=peer\n");
  EXPECT_EQ(ExportsText({{"A", "it's"}}), "export A='it'\\''s'\n");
}

TEST(Exports, SayThatThereIsNoRdma) { EXPECT_EQ(ExportsFor(Facts{}).at("NCCL_IB_DISABLE"), "1"); }

}  // namespace
}  // namespace weightcast::doctor
