#include "worker/quarantine.h"

#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::worker {

void Quarantine::Keep(std::shared_ptr<LandingMemory> memory, std::string writers) {
  (void)memory->Close(Clock::now());  // Forbids writes that have not begun.
  buffers_.push_back({.memory = std::move(memory), .writers = std::move(writers)});
}

std::vector<Quarantine::Buffer> Quarantine::TakeFree(TimePoint deadline) {
  std::vector<Buffer> free;
  std::vector<Buffer> held;
  for (Buffer& buffer : buffers_)
    (buffer.memory->Close(deadline).ok() ? free : held).push_back(std::move(buffer));
  buffers_ = std::move(held);
  return free;
}

void Quarantine::Abandon(TimePoint deadline) {
  TakeFree(deadline);
  for (Buffer& buffer : std::exchange(buffers_, {})) {
    WC_LOG(kWarning, "this inference rank ends while ", buffer.writers,
           " may still write to its spare buffer of ",
           HumanBytes(static_cast<double>(buffer.memory->shadow_bytes())),
           "; that memory stays reserved until this process ends, and nothing is to be done");
    [[maybe_unused]] const auto* kept = new std::shared_ptr<LandingMemory>(std::move(buffer.memory));
  }
}

}  // namespace weightcast::worker
