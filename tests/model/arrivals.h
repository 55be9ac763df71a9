#pragma once

#include <cstdint>

namespace weightcast::model {

/// What a rank knows of the signals of its sources: a set, as endpoint/transfers/grants.h keeps one of chunks
/// and worker/receiver.h one of sources. Apart, so that a test can plant a mistake here.
uint8_t AddArrival(uint8_t arrived, int source);
bool AllArrived(uint8_t arrived, int sources);

}  // namespace weightcast::model
