#include "tools/bench/p2p/messages.h"

namespace weightcast::tools {

std::optional<std::string_view> AnswerTo(std::string_view op) {
  if (op == "ping") return "pong";
  if (op == "signal") return "echo";
  return std::nullopt;
}

bool IsPing(uint64_t piece_bytes, uint64_t iovs) {
  return iovs == 1 && piece_bytes >= sizeof(uint64_t) && piece_bytes <= kMostPing &&
         piece_bytes % sizeof(uint64_t) == 0;
}

}  // namespace weightcast::tools
