#include "tools/bench/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/strings.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

constexpr double kWidth = 960;
constexpr double kHeight = 540;
constexpr double kLeft = 80;
constexpr double kRight = 240;  // The legend stands there.
constexpr double kTop = 50;
constexpr double kBottom = 70;
// Told apart by readers who do not see all colours (Okabe and Ito).
constexpr std::array<std::string_view, 7> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#000000"};

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, std::string_view anchor, std::string_view text) {
  return StrCat("<text x=\"", Decimal(x, 1), "\" y=\"", Decimal(y, 1), "\" text-anchor=\"", anchor, "\">",
                Escaped(text), "</text>\n");
}

std::string Stroke(double x1, double y1, double x2, double y2, std::string_view colour, int width) {
  return StrCat("<line x1=\"", Decimal(x1, 1), "\" y1=\"", Decimal(y1, 1), "\" x2=\"", Decimal(x2, 1),
                "\" y2=\"", Decimal(y2, 1), "\" stroke=\"", colour, "\" stroke-width=\"", width, "\"/>\n");
}

/// "64K".
std::string ShortBytes(double bytes) {
  for (const auto& [unit, name] : {std::pair(0x1p30, "G"), std::pair(0x1p20, "M"), std::pair(0x1p10, "K")}) {
    if (bytes >= unit) return StrCat(Decimal(bytes / unit, std::fmod(bytes, unit) == 0 ? 0 : 1), name);
  }
  return Decimal(bytes, 0);
}

/// The round number (1, 2 or 5 times a power of ten) that divides `most` into four to ten steps.
double StepFor(double most) {
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double step : {0.1, 0.2, 0.5, 1.0}) {
    if (most / (step * power) <= 10) return step * power;
  }
  return power;
}

}  // namespace

std::string ToSvg(const Plot& plot) {
  std::set<double> places;
  double most = 0;
  for (const PlotLine& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      places.insert(x);
      most = std::max(most, y);
    }
  }
  if (places.empty() || most <= 0) most = 1;
  if (places.empty()) places.insert(1);
  const double step = StepFor(most);
  const double top = std::ceil(most / step) * step;
  const double first = std::log2(*places.begin());
  const double span = std::max(std::log2(*places.rbegin()) - first, 1e-9);
  const auto at_x = [&](double x) {
    return kLeft + (std::log2(x) - first) / span * (kWidth - kLeft - kRight);
  };
  const auto at_y = [&](double y) { return kHeight - kBottom - y / top * (kHeight - kTop - kBottom); };

  std::string svg = StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", Decimal(kWidth, 0),
                           " ", Decimal(kHeight, 0), "\" font-family=\"sans-serif\" font-size=\"13\">\n",
                           "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
  svg += Text(kLeft, kTop - 20, "start", plot.title);
  svg += Text((kLeft + kWidth - kRight) / 2, kHeight - 20, "middle", plot.x_label);
  svg += Text(kLeft - 8, kTop - 4, "end", plot.y_label);
  for (double y = 0; y <= top + step / 2; y += step) {
    svg += Stroke(kLeft, at_y(y), kWidth - kRight, at_y(y), "#dddddd", 1);
    svg += Text(kLeft - 8, at_y(y) + 4, "end", Decimal(y, step < 1 ? 2 : 0));
  }
  double last_label = -1e9;
  for (const double x : places) {
    if (at_x(x) - last_label < 40) continue;
    last_label = at_x(x);
    svg += Text(at_x(x), kHeight - kBottom + 20, "middle", plot.x_bytes ? ShortBytes(x) : Decimal(x, 0));
  }
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const PlotLine& line = plot.lines[i];
    const std::string_view colour = kColours[i % kColours.size()];
    std::string path;
    for (const auto& [x, y] : line.points) {
      path += StrCat(path.empty() ? "" : " ", Decimal(at_x(x), 1), ",", Decimal(at_y(y), 1));
      svg += StrCat("<circle cx=\"", Decimal(at_x(x), 1), "\" cy=\"", Decimal(at_y(y), 1),
                    "\" r=\"3\" fill=\"", colour, "\"/>\n");
    }
    svg += StrCat("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"", colour, "\" points=\"", path, "\"",
                  i >= kColours.size() ? " stroke-dasharray=\"6 3\"" : "", "/>\n");
    const double y = kTop + 20 * static_cast<double>(i);
    svg += Stroke(kWidth - kRight + 20, y, kWidth - kRight + 44, y, colour, 2);
    svg += Text(kWidth - kRight + 52, y + 4, "start", line.name);
  }
  return svg + "</svg>\n";
}

}  // namespace weightcast::tools
