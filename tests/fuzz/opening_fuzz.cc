// What strangers send to the controller's port: read as far as the first request or refused, and read the
// same when it comes piece by piece.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "control/opening.h"

using weightcast::control::kClientPreface;
using weightcast::control::ReadFirstRequest;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes =
      std::string(kClientPreface) + std::string(reinterpret_cast<const char*>(data), size);
  const auto whole = ReadFirstRequest(bytes);
  if (whole.ok() && *whole && (*whole)->path.size() + (*whole)->authorization.size() > size) std::abort();
  for (size_t part = kClientPreface.size(); part < bytes.size();
       part += std::max<size_t>(bytes.size() / 16, 1)) {
    const auto early = ReadFirstRequest(std::string_view(bytes).substr(0, part));
    const bool same = whole.ok() && *whole && early.ok() && (!*early || (*early)->path == (*whole)->path);
    if (early.ok() && *early && !same) std::abort();
  }
  return 0;
}
