#pragma once

#include <string>

#include "control/verdict.h"
#include "protocol/observer_messages.h"

namespace weightcast::control {

/// One update as docs/explain.md has it: an object of JSON, on one line.
std::string ToJson(const Explained& update);

/// An array of JSON.
std::string ToJson(const Explanations& updates);

/// Of one model's, the last that are asked for; oldest first.
Explanations Choose(const Explanations& updates, const protocol::AskUpdates& ask);

}  // namespace weightcast::control
