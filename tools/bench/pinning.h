#pragma once

#include <cstdint>

namespace weightcast::tools {

/// Keeps the calling thread, and those that it starts, on one of the cores that it may use, counted round.
/// Does nothing where there is only one.
void PinToCore(uint32_t number);

}  // namespace weightcast::tools
