#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weightcast::tools {

/// One line of a plot: points (x, y) in ascending x.
struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool x_bytes = false;  ///< Tick labels such as 64K; the scale of x is logarithmic in any case.
  std::vector<PlotLine> lines;
};

/// The plot as an SVG document: x > 0 on a logarithmic scale, y from 0 up; a legend on the right.
std::string ToSvg(const Plot& plot);

}  // namespace weightcast::tools
