#pragma once

#include <string>

#include "protocol/trace.h"

namespace weightcast::tools {

/// A line for each message, for a person.
std::string TraceText(const protocol::Trace& trace);
/// The same as lines of JSON.
std::string TraceJson(const protocol::Trace& trace);

}  // namespace weightcast::tools
