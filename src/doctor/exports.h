#pragma once

#include <map>
#include <string>

#include "doctor/facts.h"

namespace weightcast::doctor {

/// Variables that make NCCL, gloo and weightcast use what works on this machine. Only those that change
/// something.
std::map<std::string, std::string> ExportsFor(const Facts& facts);
/// "export NAME=value" lines for a shell.
std::string ExportsText(const std::map<std::string, std::string>& exports);

}  // namespace weightcast::doctor
