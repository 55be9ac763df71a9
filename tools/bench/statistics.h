#pragma once

#include <algorithm>
#include <vector>

namespace weightcast::tools {

/// The value below which `part` (0 to 1) of the values lie. `values` is not empty.
inline double Quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(static_cast<double>(values.size()) * part))];
}

/// The middle one, or the mean of the two in the middle. `values` is not empty.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace weightcast::tools
