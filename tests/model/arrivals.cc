#include "tests/model/arrivals.h"

namespace weightcast::model {

uint8_t AddArrival(uint8_t arrived, int source) { return static_cast<uint8_t>(arrived | (1 << source)); }

bool AllArrived(uint8_t arrived, int sources) { return arrived == (1 << sources) - 1; }

}  // namespace weightcast::model
