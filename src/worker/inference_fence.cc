#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "worker/inference_worker.h"

// What an inference rank does while a stopped process may still write to its memory.
namespace weightcast::worker {
namespace {

/// Between two lines of the log that say the same.
constexpr auto kTellAgain = std::chrono::minutes(1);

std::string Join(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += StrCat(all.empty() ? "" : ", ", name);
  return all;
}

}  // namespace

/// The fence of an update is due within microseconds, unless a writer is stopped: after half a lease it
/// counts as that. `tell`: when to say so. The timer keeps no grants: with them it would keep the spare
/// buffer, which a rank that sleeps gives back at once. Grants that are not fenced are kept by their
/// connections.
void InferenceWorker::WatchFence(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants,
                                 TimePoint tell) {
  session_->loop().After(session_->settings().lease / 2, [this, update, weak = std::weak_ptr(grants), tell] {
    if (const auto held = weak.lock()) OnFenceLate(update, held, tell);
  });
}

bool InferenceWorker::IsHeld(const protocol::UpdateId& update) const {
  const bool revoked = state_.step == Step::kAborting || state_.step == Step::kFencing;
  return revoked && state_.update == update && !state_.fenced;
}

void InferenceWorker::OnFenceLate(const protocol::UpdateId& update, const std::shared_ptr<GrantSet>& grants,
                                  TimePoint tell) {
  const std::string writers = Join(grants->Writers());
  if (!IsHeld(update) || writers.empty()) return;
  const bool spare = memory_ != nullptr && memory_->replaceable();
  const bool beside = state_.landing == protocol::Landing::kShadow;
  Status aside;
  if (spare && state_.step == Step::kAborting) aside = SetAside(update, writers);
  if (Clock::now() >= tell && (!spare || !aside.ok())) {
    tell = Clock::now() + kTellAgain;
    WC_LOG(kWarning, session_->text(), ": ", writers, " is stopped in the middle of a write ",
           spare    ? StrCat("into the spare buffer, and ", aside.message(),
                             ". Receives nothing and serves the old version")
           : beside ? std::string("into the loader's memory. Receives nothing and serves the old version")
                    : std::string("into the live tensors. Serves nothing"),
           " until that process continues or has ended: let it continue, or end it");
  }
  WatchFence(update, grants, tell);
}

/// Begins to replace the spare buffer. The error says why it could not so far.
Status InferenceWorker::SetAside(const protocol::UpdateId& update, std::string writers) {
  if (state_.call == UserCall::kSuspend) {  // No other is needed; Suspend sees to this one.
    Feed(SpareSetAside{update});
    return Status::Ok();
  }
  if (making_spare_ || memory_ == nullptr) return Status::Ok();
  if (quarantine_.full())
    return {Code::kExhausted, StrCat("there are ", Quarantine::kMost,
                                     " such buffers already; end the stopped writer that holds them")};
  making_spare_ = true;
  Status before = std::exchange(spare_error_, Status::Ok());
  background_.Run([this, update, writers = std::move(writers), shards = memory_->shards()] {
    auto made = LandingMemory::Register(session_->endpoint(), shards, LandingMode::kShadow, /*parts=*/{},
                                        session_->settings());
    session_->loop().Post([this, update, writers, made] { OnSpareMade(update, writers, made); });
  });
  return before;
}

void InferenceWorker::OnSpareMade(const protocol::UpdateId& update, const std::string& writers,
                                  Result<std::shared_ptr<LandingMemory>> made) {
  making_spare_ = false;
  spare_error_ = made.status();
  if (!made.ok()) return;
  if (!IsHeld(update) || state_.step != Step::kAborting || state_.call == UserCall::kSuspend)
    return background_.Run([spare = std::move(*made)] {});  // It went on meanwhile.
  // What was prepared to be given lies in the old buffer.
  peer_source_->Feed(MemoryReclaimed{.reason = {}, .leaves = true});
  WC_LOG(kWarning, session_->text(), ": ", writers, " is stopped in the middle of a write into the spare ",
         "buffer (", HumanBytes(static_cast<double>(memory_->shadow_bytes())),
         "). It is set aside until that process continues or has ended, so end it; another buffer takes its "
         "place");
  quarantine_.Keep(std::exchange(memory_, std::move(*made)), writers);
  plan_.reset();
  grants_.reset();
  {
    const std::lock_guard lock(mutex_);
    shared_.memory = memory_;
  }
  WatchQuarantine();
  Feed(SpareSetAside{update});
}

void InferenceWorker::WatchQuarantine() {
  session_->loop().After(session_->settings().lease, [this] {
    auto free = quarantine_.TakeFree(Clock::now());
    for (const auto& buffer : free)
      WC_LOG(kInfo, session_->text(), ": the spare buffer that ", buffer.writers, " held is free again");
    if (!free.empty()) background_.Run([free = std::move(free)] {});
    if (!quarantine_.empty()) WatchQuarantine();
  });
}

}  // namespace weightcast::worker
