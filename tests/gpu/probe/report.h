#pragma once

#include <string>
#include <utility>
#include <vector>

namespace probe {

enum class Verdict { kAsPredicted, kOtherwise, kNothingPredicted, kSkipped };

/// What one experiment found.
struct Report {
  std::string experiment;  ///< "E4: what was done".
  std::string predicted{};
  std::string measured{};
  std::string unit{};
  Verdict verdict = Verdict::kSkipped;
  std::string note{};
  std::vector<std::pair<std::string, double>> figures{};
};

/// One line of JSON on standard output, in the form of the other figures of tests/gpu/run.sh.
void Print(const Report& report);
inline Verdict VerdictIf(bool holds) { return holds ? Verdict::kAsPredicted : Verdict::kOtherwise; }
/// Three digits: "2.65", "0.00123", "12300".
std::string Text(double value);
/// "2.65; 2.55"
std::string Text(const std::vector<double>& values);

}  // namespace probe
