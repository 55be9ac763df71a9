#pragma once

#include <string>

#include "tools/bench/channel.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Carries out what the process that measures asks for, with an endpoint and memory of its own, until
/// that process goes. Errors go to it as answers.
void ServeParty(const BenchChannel& channel, const Settings& settings, const std::string& token);

}  // namespace weightcast::tools
