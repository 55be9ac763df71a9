#pragma once

namespace weightcast {

/// Tells the core that this thread only looks again: leaves its other hardware thread the units.
inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace weightcast
