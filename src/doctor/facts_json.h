#pragma once

#include <string>
#include <string_view>

#include "doctor/facts.h"
#include "weightcast/status.h"

namespace weightcast::doctor {

/// One JSON object with a member for each probe.
std::string FactsJson(const Facts& facts);
/// The member `name` of such an object replaces that of `facts`; others stay.
/// Members that are missing keep their defaults. Errors: kCorrupt.
Status AddFacts(std::string_view json, std::string_view name, Facts& facts);

}  // namespace weightcast::doctor
