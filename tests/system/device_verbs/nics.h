#pragma once

#include "fake_ibverbs/fabric.h"

namespace weightcast {

/// What NICs the next endpoint of this process finds, and the network that they are on. The program's
/// built-in transports are verbs on that network, and tcp (nics.cc).
fake::HostConfig& NicsOfTheNext();
/// Two NICs that take device memory, or do not.
fake::HostConfig TwoNics(bool dmabuf);

}  // namespace weightcast
