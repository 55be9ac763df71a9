#include "doctor/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/strings.h"
#include "doctor/exports.h"
#include "doctor/facts_json.h"

namespace weightcast::doctor {
namespace {

using Json = nlohmann::json;

std::string_view LabelOf(Level level) {
  switch (level) {
    case Level::kNotApplicable:
      return "n/a ";
    case Level::kOk:
      return "OK  ";
    case Level::kWarn:
      return "WARN";
    case Level::kFail:
      break;
  }
  return "FAIL";
}

std::string FindingText(const Finding& finding) {
  std::string out = StrCat("  ", LabelOf(finding.level), "  ", finding.check,
                           finding.subject.empty() ? "" : " ", finding.subject, ": ", finding.text, "\n");
  if (finding.level != Level::kWarn && finding.level != Level::kFail) return out;
  if (!finding.evidence.empty()) out += StrCat("        evidence: ", finding.evidence, "\n");
  if (!finding.remedy.empty()) out += StrCat("        to fix it: ", finding.remedy, "\n");
  return out;
}

size_t CountOf(const std::vector<Finding>& findings, Level level) {
  return static_cast<size_t>(std::ranges::count(findings, level, &Finding::level));
}

Json JsonOf(const Finding& finding) {
  return {{"level", NameOf(finding.level)}, {"group", finding.group}, {"check", finding.check},
          {"subject", finding.subject},     {"text", finding.text},   {"evidence", finding.evidence},
          {"remedy", finding.remedy}};
}

}  // namespace

std::string_view NameOf(Level level) {
  switch (level) {
    case Level::kNotApplicable:
      return "not_applicable";
    case Level::kOk:
      return "ok";
    case Level::kWarn:
      return "warn";
    case Level::kFail:
      break;
  }
  return "fail";
}

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

std::string ReportText(const Report& report) {
  std::string out;
  std::string group;
  for (const Finding& finding : report.findings) {
    if (finding.group != group) out += StrCat(group.empty() ? "" : "\n", finding.group, "\n");
    group = finding.group;
    out += FindingText(finding);
  }
  if (report.compared) {
    out += report.changes.empty() ? "\nNothing has changed since the baseline.\n"
                                  : "\nChanged since the baseline:\n";
    for (const std::string& change : report.changes) out += StrCat("  ", change, "\n");
  }
  return StrCat(out, "\n", CountOf(report.findings, Level::kOk), " OK, ",
                CountOf(report.findings, Level::kNotApplicable), " n/a, ",
                CountOf(report.findings, Level::kWarn), " WARN, ", CountOf(report.findings, Level::kFail),
                " FAIL\n");
}

std::string ReportJson(const Report& report, const std::string& version) {
  Json json{{"weightcast", version},
            {"worst", NameOf(WorstOf(report.findings))},
            {"exports", report.exports},
            {"facts", Json::parse(FactsJson(report.facts))},
            {"findings", Json::array()}};
  for (const Finding& finding : report.findings) json["findings"].push_back(JsonOf(finding));
  if (report.compared) json["changes"] = report.changes;
  return StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
}

}  // namespace weightcast::doctor
