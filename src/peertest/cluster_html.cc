#include <array>
#include <cmath>

#include "base/strings.h"
#include "doctor/report.h"
#include "http/page.h"
#include "peertest/cluster_report.h"
#include "peertest/units.h"

namespace weightcast::peertest {
namespace {

using doctor::Level;

/// What the live page has no need of.
constexpr std::string_view kStyle = R"(
.matrix td, .matrix th { padding: 4px 6px; text-align: right; vertical-align: middle; white-space: nowrap; }
.matrix tbody th { text-align: left; }
.matrix td { min-width: 56px; border: 1px solid var(--ground); }
.matrix td.slow { background: var(--bad-ground); color: var(--bad); font-weight: 600; }
.matrix td.fine { background: var(--good-ground); color: var(--good); }
.matrix td.none { background: var(--none-ground); color: var(--text); }
.finding { margin: 12px 0; }
.finding code { overflow-wrap: anywhere; }
h2 { margin: 24px 0 8px; }
)";

/// The live page's own.
std::string_view PageStyle() {
  for (const http::PageFile& file : http::PageFiles())
    if (file.path == "/page.css") return file.body;
  return {};
}

std::string_view BadgeOf(Level level) {
  static constexpr std::array<std::string_view, 4> kBadges = {
      R"(<span class="badge">n/a</span>)", R"(<span class="badge good">OK</span>)",
      R"(<span class="badge busy">WARN</span>)", R"(<span class="badge bad">FAIL</span>)"};
  static_assert(kBadges.size() == static_cast<size_t>(Level::kFail) + 1);
  return kBadges[static_cast<size_t>(level)];
}

std::string FindingHtml(const doctor::Finding& one) {
  std::string out = StrCat(R"(<div class="finding">)", BadgeOf(one.level), " <strong>", EscapeHtml(one.check),
                           " ", EscapeHtml(one.subject), "</strong> ", EscapeHtml(one.text));
  if (!one.evidence.empty())
    out += StrCat(R"(<p class="quiet">evidence: )", EscapeHtml(one.evidence), "</p>");
  if (!one.remedy.empty()) out += StrCat("<p>to fix it: <code>", EscapeHtml(one.remedy), "</code></p>");
  return out + "</div>\n";
}

std::string CellHtml(const Matrix& matrix, size_t from, size_t to) {
  if (from == to) return R"(<td class="none"><span aria-hidden="true">.</span></td>)";
  if (!matrix.gbit[from][to]) return R"(<td class="none">not measured</td>)";
  const bool slow = matrix.slow[from][to];
  const std::string late = matrix.latency[from][to] ? TimeText(*matrix.latency[from][to]) : "";
  return StrCat(R"(<td class="number )", slow ? "slow" : "fine", R"(" title=")",
                EscapeHtml(StrCat(matrix.names[from], " to ", matrix.names[to], ", ", late, " one way")),
                R"(">)", EscapeHtml(GbitText(*matrix.gbit[from][to])), slow ? " slow" : "", "</td>");
}

std::string MatrixHtml(const Matrix& matrix) {
  std::string out =
      R"(<div class="panel" role="region" aria-label="Bandwidth" tabindex="0"><table class="matrix">)";
  out += "<thead><tr><th scope=\"col\">from, to</th>";
  for (const std::string& name : matrix.names)
    out += StrCat(R"(<th scope="col">)", EscapeHtml(name), "</th>");
  out += "</tr></thead>\n<tbody>";
  for (size_t from = 0; from < matrix.names.size(); ++from) {
    out += StrCat(R"(<tr><th scope="row">)", EscapeHtml(matrix.names[from]), "</th>");
    for (size_t to = 0; to < matrix.names.size(); ++to) out += CellHtml(matrix, from, to);
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  static constexpr std::string_view kSpecial = "&<>\"'";
  static constexpr std::array<std::string_view, 5> kEscapes = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : text) {
    const size_t at = kSpecial.find(c);
    out += at == std::string_view::npos ? std::string_view(&c, 1) : kEscapes[at];
  }
  return out;
}

std::string ClusterHtml(const ClusterFacts& facts, const Matrix& matrix,
                        const std::vector<doctor::Finding>& findings, std::string_view version) {
  std::string out = StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>weightcast doctor: cluster</title>\n<style>\n",
      PageStyle(), kStyle, "</style>\n</head>\n<body>\n");
  out += StrCat("<header><div class=\"title\"><h1>Cluster</h1> ", BadgeOf(doctor::WorstOf(findings)),
                R"(<span class="quiet">)", facts.hosts.size(), " hosts, ", facts.pairs.size(), " pairs in ",
                facts.rounds, " rounds, ", static_cast<int64_t>(std::lround(facts.seconds)),
                " s; weightcast ", EscapeHtml(version), "</span></div></header>\n<main>\n");
  out += "<h2>Findings</h2>\n";
  // The worst first: nobody scrolls to the end of a page.
  for (auto one = findings.rbegin(); one != findings.rend(); ++one) out += FindingHtml(*one);
  out += StrCat("<h2>Bandwidth</h2>\n", MatrixHtml(matrix));
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace weightcast::peertest
