#include "gpu/probe/report.h"

#include <cmath>
#include <cstdio>

#include "gpu/probe/driver.h"

namespace probe {
namespace {

const char* Words(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAsPredicted:
      return "as predicted";
    case Verdict::kOtherwise:
      return "not as predicted";
    case Verdict::kNothingPredicted:
      return "nothing was predicted for this";
    case Verdict::kSkipped:
      return "skipped";
  }
  return "";
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace

std::string Text(double value) {
  if (!std::isfinite(value)) return "-1";
  const int whole = value == 0 ? 1 : static_cast<int>(std::floor(std::log10(std::fabs(value)))) + 1;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", whole >= 3 ? 0 : 3 - whole, value);
  return text;
}

std::string Text(const std::vector<double>& values) {
  std::string out;
  for (const double value : values) out += (out.empty() ? "" : "; ") + Text(value);
  return out;
}

void Print(const Report& report) {
  std::string note = std::string(Words(report.verdict)) + (OnFake() ? ", on the fake driver" : "");
  if (!report.note.empty()) note += "; " + report.note;
  std::string line = "{\"experiment\": " + Quoted(report.experiment);
  line += ", \"predicted\": " + Quoted(report.predicted) + ", \"measured\": " + Quoted(report.measured);
  line += ", \"unit\": " + Quoted(report.unit) + ", \"verdict\": " + Quoted(Words(report.verdict));
  line += ", \"note\": " + Quoted(note) + ", \"figures\": {";
  const char* comma = "";
  for (const auto& [name, value] : report.figures) {
    line += comma + Quoted(name) + ": " + Text(value);
    comma = ", ";
  }
  line += "}}\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace probe
