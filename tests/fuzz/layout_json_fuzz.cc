// Reading a layout: what is accepted must come back the same from its own JSON.

#include <cstdlib>
#include <string>

#include "plan/layout_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightcast::plan;
  const auto layout = ParseLayout({reinterpret_cast<const char*>(data), size});
  if (!layout.ok()) return 0;
  const std::string json = ToJson(*layout);
  const auto again = ParseLayout(json);
  if (!again.ok() || ToJson(*again) != json) std::abort();
  return 0;
}
