#pragma once

#include <string>

#include "control/page_state.h"
#include "protocol/view.h"

/// The JSON of docs/http.md, one line each.
namespace weightcast::control {

std::string StateJson(const protocol::ClusterView& view);
/// One element of /api/updates.
std::string UpdateJson(const UpdateRecord& record);

}  // namespace weightcast::control
