#include "control/terms.h"

#include "base/strings.h"
#include "protocol/limits.h"

namespace weightcast::control {

Result<uint64_t> NumberAfter(const protocol::Term& own, const protocol::Term& told) {
  // A worker that has followed `told` follows nobody in an older term, so this one has to be over.
  if (told <= own) return own.number;
  if (told.number - own.number > protocol::kMaxTermJump || told.number >= protocol::kMaxTerm)
    return Error(Code::kInvalidArgument, "this worker has followed a controller of term ", told.number,
                 " (a count of controller starts), and this controller is at term ", own.number, "; at most ",
                 protocol::kMaxTermJump, " more are allowed: start the worker again as a new process");
  return told.number + 1;
}

}  // namespace weightcast::control
