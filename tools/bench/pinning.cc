#include "tools/bench/pinning.h"

#include <sched.h>

namespace weightcast::tools {

void PinToCore(uint32_t number) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  const uint32_t which = number % static_cast<uint32_t>(CPU_COUNT(&allowed));
  for (uint32_t cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != which) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace weightcast::tools
