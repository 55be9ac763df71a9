#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace weightcast {

/// The value below which `part` (0 to 1) of the values lie. `values` is not empty.
inline double Quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[std::min(values.size() - 1, static_cast<size_t>(static_cast<double>(values.size()) * part))];
}

/// The middle one, or the mean of the two in the middle; 0 of none.
inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace weightcast
