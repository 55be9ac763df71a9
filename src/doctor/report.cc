#include "doctor/report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/json.h"
#include "base/strings.h"
#include "doctor/facts_json.h"

namespace weightcast::doctor {
namespace {

using Json = nlohmann::json;

/// In the order of Level.
constexpr std::array<std::string_view, 4> kLabels = {"n/a ", "OK  ", "WARN", "FAIL"};
constexpr std::array<std::string_view, 4> kLevelNames = {"not_applicable", "ok", "warn", "fail"};
static_assert(kLabels.size() == static_cast<size_t>(Level::kFail) + 1);

std::string FindingText(const Finding& finding) {
  std::string out = StrCat("  ", kLabels[static_cast<size_t>(finding.level)], "  ", finding.check,
                           finding.subject.empty() ? "" : " ", finding.subject, ": ", finding.text, "\n");
  if (finding.level != Level::kWarn && finding.level != Level::kFail) return out;
  if (!finding.evidence.empty()) out += StrCat("        evidence: ", finding.evidence, "\n");
  if (!finding.remedy.empty()) out += StrCat("        to fix it: ", finding.remedy, "\n");
  return out;
}

size_t CountOf(const std::vector<Finding>& findings, Level level) {
  return static_cast<size_t>(std::ranges::count(findings, level, &Finding::level));
}

std::string GroupsText(const std::vector<Finding>& findings) {
  std::string out;
  std::string group;
  for (const Finding& finding : findings) {
    if (finding.group != group) out += StrCat(group.empty() ? "" : "\n", finding.group, "\n");
    group = finding.group;
    out += FindingText(finding);
  }
  return out;
}

std::string CountsText(const std::vector<Finding>& findings) {
  return StrCat("\n", CountOf(findings, Level::kOk), " OK, ", CountOf(findings, Level::kNotApplicable),
                " n/a, ", CountOf(findings, Level::kWarn), " WARN, ", CountOf(findings, Level::kFail),
                " FAIL\n");
}

Json JsonOf(const Finding& finding) {
  return {{"level", NameOf(finding.level)}, {"group", finding.group}, {"check", finding.check},
          {"subject", finding.subject},     {"text", finding.text},   {"evidence", finding.evidence},
          {"remedy", finding.remedy}};
}

}  // namespace

std::string_view NameOf(Level level) { return kLevelNames[static_cast<size_t>(level)]; }

void SortFindings(std::vector<Finding>& findings) {
  std::map<std::string, Level> worst;
  std::map<std::string, size_t> first;
  for (size_t i = 0; i < findings.size(); ++i) {
    const Finding& one = findings[i];
    worst[one.group] = std::max(worst[one.group], one.level);
    first.try_emplace(one.group, i);
  }
  std::ranges::stable_sort(findings, {}, [&](const Finding& one) {
    return std::tuple(worst[one.group], first[one.group], one.level);
  });
}

Level WorstOf(const std::vector<Finding>& findings) {
  Level worst = Level::kNotApplicable;
  for (const Finding& one : findings) worst = std::max(worst, one.level);
  return worst;
}

std::string FindingsText(const std::vector<Finding>& findings) {
  return GroupsText(findings) + CountsText(findings);
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  return JsonText(JsonArray<Json>(findings, JsonOf));
}

std::string ReportText(const Report& report) {
  std::string out = GroupsText(report.findings);
  if (report.compared) {
    out += report.changes.empty() ? "\nNothing has changed since the baseline.\n"
                                  : "\nChanged since the baseline:\n";
    for (const std::string& change : report.changes) out += StrCat("  ", change, "\n");
  }
  return out + CountsText(report.findings);
}

std::string ReportJson(const Report& report, const std::string& version) {
  Json json{{"weightcast", version},
            {"worst", NameOf(WorstOf(report.findings))},
            {"exports", report.exports},
            {"facts", ParseJson(FactsJson(report.facts))},
            {"findings", JsonArray<Json>(report.findings, JsonOf)}};
  if (report.compared) json["changes"] = report.changes;
  return StrCat(JsonText(json), "\n");
}

}  // namespace weightcast::doctor
