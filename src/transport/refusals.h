#pragma once

#include <array>
#include <cstdint>

#include "transport/types.h"

namespace weightcast::transport {

/// The writes of one lane that were refused since their grant's last signal: see Op. Kept on both sides,
/// each for what it refuses itself.
class Refusals {
 public:
  /// The writes of a new signal begin.
  void Begin(const GrantName& grant) { slots_[grant.slot] = {}; }
  void Note(const GrantName& grant, Code code) { slots_[grant.slot] = {grant.id, code}; }
  /// A signal ends what it stands for. kOk, or why it must not be set.
  Code End(const GrantName& grant) {
    const Refusal last = slots_[grant.slot];
    slots_[grant.slot] = {};
    return last.grant == grant.id ? last.code : Code::kOk;
  }

 private:
  struct Refusal {
    uint64_t grant = 0;
    Code code = Code::kOk;
  };
  std::array<Refusal, kGrantSlots> slots_{};
};

}  // namespace weightcast::transport
