#pragma once

#include <map>
#include <string>
#include <vector>

#include "doctor/facts.h"
#include "doctor/finding.h"

namespace weightcast::doctor {

/// Groups with a worse finding come later, and so do findings within a group.
void SortFindings(std::vector<Finding>& findings);
Level WorstOf(const std::vector<Finding>& findings);

/// What one run has to say.
struct Report {
  Facts facts;
  std::vector<Finding> findings;               ///< Sorted.
  std::map<std::string, std::string> exports;  ///< Variables to set, by name.
  std::vector<std::string> changes;            ///< Since a baseline.
  bool compared = false;                       ///< There was a baseline.
};

/// For a person: sorted findings, in groups, and how many of each level.
std::string FindingsText(const std::vector<Finding>& findings);
/// One JSON array.
std::string FindingsJson(const std::vector<Finding>& findings);

/// For a person.
std::string ReportText(const Report& report);
/// One JSON object and a line break (docs/doctor.md, "JSON"); also what --bundle writes and --baseline reads.
std::string ReportJson(const Report& report, const std::string& version);

}  // namespace weightcast::doctor
