#include "transport/shm/ptracer.h"

#include <sys/prctl.h>

#include <fstream>

namespace weightcast::transport::shm {

Ptracer::Policy Ptracer::PolicyOf(const std::string& setting) {
  if (setting == "any") return Policy::kAny;
  return setting == "peer" ? Policy::kPeer : Policy::kOff;
}

Ptracer& Ptracer::OfProcess() {
  // Never destroyed: links may end while the process does.
  static auto* const process =
      new Ptracer([](unsigned long tracer) { prctl(PR_SET_PTRACER, tracer, 0, 0, 0); },
                  [] {
                    std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
                    int scope = 0;
                    return file >> scope && scope == 1;
                  });
  return *process;
}

Ptracer::Right Ptracer::Allow(Policy policy, int peer) {
  if (policy == Policy::kOff || !reserved_()) return {};
  const unsigned long tracer = policy == Policy::kAny ? PR_SET_PTRACER_ANY : static_cast<unsigned long>(peer);
  const std::lock_guard lock(mutex_);
  const bool covered = rights_ > 0 && (tracer_ == tracer || tracer_ == PR_SET_PTRACER_ANY);
  if (!covered && rights_ > 0 && policy == Policy::kPeer) return {};
  if (!covered) permit_(tracer_ = tracer);
  ++rights_;
  return Right(this);
}

void Ptracer::End() {
  const std::lock_guard lock(mutex_);
  if (--rights_ == 0) permit_(tracer_ = 0);
}

}  // namespace weightcast::transport::shm
