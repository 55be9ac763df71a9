#pragma once

#include <cstddef>
#include <span>

#include "memory/memory.h"
#include "weightcast/status.h"

namespace weightcast {

/// Makes the pages of `bytes` present without changing a byte, so that the first transfer does not
/// pay for them (copying into untouched pages is some 14 times slower). Safe against others that
/// write to the memory meanwhile. With an access that lets peers write, pages are made writable
/// (private pages of a file become copies); with the others they are only made readable.
/// Errors: kInvalidArgument where nothing is mapped, or nothing writable; kExhausted when memory runs out.
Status Populate(std::span<std::byte> bytes, Access access);

}  // namespace weightcast
