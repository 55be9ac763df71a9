#pragma once

#include "topology/gid.h"

namespace weightcast::transport::verbs {

using topology::ChooseGid;
using topology::FoundGid;

}  // namespace weightcast::transport::verbs
