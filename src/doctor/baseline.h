#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts.h"
#include "weightcast/status.h"

namespace weightcast::doctor {

/// What differs between the facts of an earlier report (JSON, as --json or --bundle wrote it) and these:
/// "rdma.ports[mlx5_0:1].rate: 400 Gb/sec (4X NDR) -> 200 Gb/sec (2X NDR)". What changes by itself, as used
/// memory, is left out. Errors: kCorrupt for no such report.
Result<std::vector<std::string>> ChangesSince(std::string_view report, const Facts& facts);

}  // namespace weightcast::doctor
