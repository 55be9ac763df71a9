#pragma once

#include <memory>

#include "drivers/ibverbs/ibverbs.h"
#include "weightcast/status.h"

namespace weightcast::drivers {

/// LoadIbverbs from a library of another name, for tests.
Result<std::shared_ptr<Ibverbs>> LoadIbverbsFrom(const char* soname);

}  // namespace weightcast::drivers
