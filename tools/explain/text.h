#pragma once

#include <string>
#include <string_view>

#include "weightcast/status.h"

namespace weightcast::tools {

/// What people read of the JSON that a controller gives (docs/explain.md): the steps of one update, or a line
/// for each of several. Errors: kProtocol for what is not such JSON.
Result<std::string> ExplainText(std::string_view json);

/// The same as events of Chrome's trace format, which Perfetto opens: a process for each worker.
Result<std::string> ExplainTrace(std::string_view json);

}  // namespace weightcast::tools
