#pragma once

#include "transport/region_table.h"

namespace weightcast::transport::tcp {

using LocalRegion = OwnRegion;
using Regions = RegionTable<LocalRegion>;

}  // namespace weightcast::transport::tcp
