#pragma once

#include <string>

#include "protocol/messages.h"

namespace weightcast::tools {

/// What the controller knows, for a person.
std::string ViewText(const protocol::ClusterView& view);
/// The same as one line of JSON.
std::string ViewJson(const protocol::ClusterView& view);

}  // namespace weightcast::tools
