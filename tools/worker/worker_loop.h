#pragma once

#include "tools/command.h"
#include "weightcast/worker.h"

namespace weightcast::tools {

/// What every worker of the binary begins with: the settings of the command line, and waits that end when the
/// process is asked to.
WorkerOptions BasicOptions(const Context& context);

/// The phases of one update at an inference rank: waits, without limit, until every byte of a version is
/// there, and switches to it. Begin() has been called; must be called again afterwards.
Result<Version> ReceiveVersion(Inference& inference, Duration finish);

}  // namespace weightcast::tools
