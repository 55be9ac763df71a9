// Reading name rules and matching a name against them.

#include <cstdlib>
#include <string>

#include "plan/rules.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightcast;
  using namespace weightcast::plan;
  const auto rules = ParseRules({reinterpret_cast<const char*>(data), size});
  if (!rules.ok()) return 0;
  const auto again = ParseRules(ToJson(*rules));
  if (!again.ok() || *again != *rules) std::abort();
  for (const Rule& rule : rules->rules) {
    const auto* rename = std::get_if<Rename>(&rule);
    if (rename == nullptr) continue;
    // A pattern expanded with what it captured from a name is that name.
    const std::string name = "model.layers.0.self_attn.q_proj.weight";
    const auto captures = MatchName(rename->from, name);
    if (captures && ExpandName(rename->from, *captures) != name) std::abort();
  }
  return 0;
}
