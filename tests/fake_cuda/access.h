#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace weightcast::fake_cuda {

/// From now on an access to an address without memory ends the Guarded call that makes it, not the process.
void GuardAccesses();
/// Runs `access`. False: it touched what is not there.
bool Guarded(const std::function<void()>& access);

enum class Access { kDone, kNoMemory, kDead };

/// Memory of another process, whose bytes are gone once it is dead.
Access ReadProcess(int pid, uint64_t from, std::byte* to, size_t length);
Access WriteProcess(int pid, uint64_t to, const std::byte* from, size_t length);

}  // namespace weightcast::fake_cuda
