#pragma once

#include "fake_cuda/engine.h"
#include "fake_cuda/machine.h"

namespace weightcast::fake_cuda {

/// Serves a request of a client. `fd`: as Link::Send.
Reply Dispatch(Machine& machine, Engine& engine, Client& client, const Request& request, int& fd);

/// Shared memory of this descriptor; -1: of this process only. Empty at first.
Area* NewArea(int fd);
void DropArea(Area* area);

}  // namespace weightcast::fake_cuda
