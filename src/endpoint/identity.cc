#include "weightcast/identity.h"

#include "base/strings.h"

namespace weightcast {

std::string ToString(const Identity& identity) {
  if (!identity.engine.empty()) return StrCat("engine ", identity.engine, " rank ", identity.rank);
  return StrCat(identity.role.empty() ? "process" : identity.role, " ", identity.rank);
}

}  // namespace weightcast
