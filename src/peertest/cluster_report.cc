#include "peertest/cluster_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/strings.h"
#include "doctor/report.h"

namespace weightcast::peertest {
namespace {

using Json = nlohmann::json;

std::string CellText(const Matrix& matrix, size_t from, size_t to) {
  if (from == to) return ".";
  if (!matrix.gbit[from][to]) return "?";
  const double gbit = *matrix.gbit[from][to];
  char text[32];
  std::snprintf(text, sizeof text,
                gbit < 1     ? "%.3f%s"
                : gbit < 100 ? "%.1f%s"
                             : "%.0f%s",
                gbit, matrix.slow[from][to] ? "!" : "");
  return text;
}

void Pad(std::string& out, const std::string& text, size_t width) {
  out.append(width > text.size() ? width - text.size() : 0, ' ');
  out += text;
}

Json RowsOf(const std::vector<std::vector<std::optional<double>>>& rows) {
  return JsonArray<Json>(rows, [](const auto& row) {
    return JsonArray<Json>(row, [](const auto& one) { return one ? Json(*one) : Json(); });
  });
}

}  // namespace

std::string MatrixText(const Matrix& matrix) {
  constexpr size_t kWidth = 8;
  std::string out = "Gbit/s from each host (row) to each other (column); ! slow, ? not measured\n\n";
  size_t widest = 0;
  for (const std::string& name : matrix.names) widest = std::max(widest, name.size());
  out.append(widest + 5, ' ');
  for (size_t to = 0; to < matrix.names.size(); ++to) Pad(out, StrCat(to + 1), kWidth);
  out += '\n';
  for (size_t from = 0; from < matrix.names.size(); ++from) {
    Pad(out, StrCat(from + 1), 4);
    out += StrCat(" ", matrix.names[from]);
    out.append(widest - matrix.names[from].size(), ' ');
    for (size_t to = 0; to < matrix.names.size(); ++to) Pad(out, CellText(matrix, from, to), kWidth);
    out += '\n';
  }
  return out;
}

std::string ClusterJson(const ClusterFacts& facts, const Matrix& matrix,
                        const std::vector<doctor::Finding>& findings, std::string_view version) {
  Json hosts = Json::array();
  for (size_t i = 0; i < facts.hosts.size(); ++i) {
    const ClusterHost& one = facts.hosts[i];
    hosts.push_back({{"name", matrix.names[i]},
                     {"target", one.target},
                     {"host", one.report.host},
                     {"weightcast", one.report.weightcast},
                     {"failure", one.failure.text}});
  }
  const Json pairs = JsonArray<Json>(facts.pairs, [](const ClusterPair& one) -> Json {
    return {
        {"tester", one.hosts.first}, {"tested", one.hosts.second}, {"facts", ParseJson(Encode(one.facts))}};
  });
  const Json json{{"weightcast", version},
                  {"worst", doctor::NameOf(doctor::WorstOf(findings))},
                  {"hosts", hosts},
                  {"rounds", facts.rounds},
                  {"seconds", facts.seconds},
                  {"gbit", RowsOf(matrix.gbit)},
                  {"latency_seconds", RowsOf(matrix.latency)},
                  {"slow", matrix.slow},
                  {"pairs", pairs},
                  {"findings", ParseJson(doctor::FindingsJson(findings))}};
  return StrCat(JsonText(json), "\n");
}

}  // namespace weightcast::peertest
