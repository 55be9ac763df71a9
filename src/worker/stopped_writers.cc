#include "worker/stopped_writers.h"

#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/strings.h"

namespace weightcast::worker {
namespace {

/// Between two lines of the log that say the same.
constexpr auto kTellAgain = std::chrono::minutes(1);

}  // namespace

/// The fence of an update is due within microseconds, unless a writer is stopped: after half a lease it
/// counts as that. `tell`: when to say so. The timer keeps no grants: with them it would keep the spare
/// buffer, which a rank that sleeps gives back at once. Grants that are not fenced are kept by their
/// connections.
void StoppedWriters::Watch(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants,
                           TimePoint tell) {
  session_.loop().After(session_.settings().lease / 2, [this, update, weak = std::weak_ptr(grants), tell] {
    if (const auto held = weak.lock()) OnLate(update, held, tell);
  });
}

bool StoppedWriters::IsHeld(const protocol::UpdateId& update) const {
  const bool revoked = state_.step == Step::kAborting || state_.step == Step::kFencing;
  return revoked && state_.update == update && !state_.fenced;
}

void StoppedWriters::OnLate(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants,
                            TimePoint tell) {
  const std::string writers = grants->Writers();
  if (!IsHeld(update) || writers.empty()) return;
  const bool spare = memory_ != nullptr && memory_->replaceable();
  const bool beside = state_.landing == protocol::Landing::kShadow;
  Status aside;
  if (spare && state_.step == Step::kAborting) aside = SetAside(update, writers);
  if (Clock::now() >= tell && (!spare || !aside.ok())) {
    tell = Clock::now() + kTellAgain;
    WC_LOG(kWarning, session_.text(), ": ", writers, " is stopped in the middle of a write ",
           spare    ? StrCat("into the spare buffer, and ", aside.message(),
                             ". Receives nothing and serves the old version")
           : beside ? std::string("into the loader's memory. Receives nothing and serves the old version")
                    : std::string("into the live tensors. Serves nothing"),
           " until that process continues or has ended: let it continue, or end it");
  }
  Watch(update, grants, tell);
}

/// Begins to replace the spare buffer. The error says why it could not so far.
Status StoppedWriters::SetAside(const protocol::UpdateId& update, std::string writers) {
  if (state_.call == UserCall::kSuspend) {  // No other is needed; Suspend sees to this one.
    callbacks_.feed(SpareSetAside{update});
    return Status::Ok();
  }
  if (making_spare_ || memory_ == nullptr) return Status::Ok();
  if (full()) {
    std::set<std::string> writers_held;  // One may hold several.
    for (const Buffer& buffer : quarantine_) writers_held.insert(buffer.writers);
    return Error(Code::kExhausted, "stopped writers hold ", kMost,
                 " such buffers already; end these processes: ", Join(writers_held, ", "));
  }
  making_spare_ = true;
  Status before = std::exchange(spare_error_, Status::Ok());
  background_.Run([this, update, writers = std::move(writers), shards = memory_->shards()] {
    auto made = LandingMemory::Register(session_.endpoint(), shards, LandingMode::kShadow, /*parts=*/{},
                                        session_.settings());
    session_.loop().Post([this, update, writers, made] { OnSpareMade(update, writers, made); });
  });
  return before;
}

void StoppedWriters::OnSpareMade(const protocol::UpdateId& update, const std::string& writers,
                                 Result<Memory> made) {
  making_spare_ = false;
  spare_error_ = made.status();
  if (!made.ok()) return;
  if (!IsHeld(update) || state_.step != Step::kAborting || state_.call == UserCall::kSuspend)
    return background_.Run([spare = std::move(*made)] {});  // It went on meanwhile.
  Memory before = callbacks_.replace(std::move(*made));
  WC_LOG(kWarning, session_.text(), ": ", writers, " is stopped in the middle of a write into the spare ",
         "buffer (", HumanBytes(static_cast<double>(before->shadow_bytes())),
         "). It is set aside until that process continues or has ended, so end it; another buffer takes its "
         "place");
  Keep(std::move(before), writers);
  callbacks_.feed(SpareSetAside{update});
}

// --- Quarantine -----------------------------------------------------------------------------------------

void StoppedWriters::Keep(Memory memory, std::string writers) {
  (void)memory->Close(Clock::now());  // Forbids writes that have not begun.
  quarantine_.push_back({.memory = std::move(memory), .writers = std::move(writers)});
  WatchQuarantine();
}

void StoppedWriters::WatchQuarantine() {
  session_.loop().After(session_.settings().lease, [this] {
    auto free = TakeFree(Clock::now());
    for (const auto& buffer : free)
      WC_LOG(kInfo, session_.text(), ": the spare buffer that ", buffer.writers, " held is free again");
    if (!free.empty()) background_.Run([free = std::move(free)] {});
    if (!quarantine_.empty()) WatchQuarantine();
  });
}

/// Those that nobody can write to any more. To free them takes long.
std::vector<StoppedWriters::Buffer> StoppedWriters::TakeFree(TimePoint deadline) {
  std::vector<Buffer> free;
  std::vector<Buffer> held;
  for (Buffer& buffer : quarantine_)
    (buffer.memory->Close(deadline).ok() ? free : held).push_back(std::move(buffer));
  quarantine_ = std::move(held);
  return free;
}

void StoppedWriters::Abandon(TimePoint deadline) {
  TakeFree(deadline);
  for (Buffer& buffer : std::exchange(quarantine_, {})) {
    WC_LOG(kWarning, "this inference rank ends while ", buffer.writers,
           " may still write to its spare buffer of ",
           HumanBytes(static_cast<double>(buffer.memory->shadow_bytes())),
           "; that memory stays reserved until this process ends, and nothing is to be done");
    [[maybe_unused]] const auto* kept = new Memory(std::move(buffer.memory));
  }
}

}  // namespace weightcast::worker
