#pragma once

#include <new>
#include <string_view>

#include "base/strings.h"
#include "weightcast/status.h"

namespace weightcast {

/// Runs `work`, which returns a Status or a Result. Where the memory of `whose` process does not suffice the
/// error says so: it may be read elsewhere. What was under way is gone. For the entry of a thread and of what
/// comes from outside: nothing that `work` has changed halfway may outlive it.
template <typename Work>
auto OrOutOfMemory(std::string_view whose, std::string_view what, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
  }
  return Error(Code::kExhausted, whose, " is out of memory: ", what, " does not fit into its limit; give ",
               whose, " more memory (ulimit -v, its control group, the host)");
}

}  // namespace weightcast
