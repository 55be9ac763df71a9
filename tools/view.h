#pragma once

#include <string>

#include "wire/messages.h"

namespace weightcast::tools {

/// What the controller knows, for a person.
std::string ViewText(const wire::ClusterView& view);
/// The same as one line of JSON.
std::string ViewJson(const wire::ClusterView& view);

}  // namespace weightcast::tools
