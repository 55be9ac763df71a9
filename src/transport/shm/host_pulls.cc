#include "transport/shm/host_pulls.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "trace/metrics.h"
#include "transport/shm/peer_rights.h"

namespace weightcast::transport::shm {
namespace {

trace::Counter& Pulled() {
  static trace::Counter& counter = trace::CounterNamed("shm.pulled_bytes");
  return counter;
}

}  // namespace

HostPulls::HostPulls(Context& context, const OwnInbox& inbox, Outbox& outbox, Paths& paths)
    : context_(&context), inbox_(&inbox), outbox_(&outbox), paths_(&paths) {
  Pulled();  // Looked up here: finding it takes a lock.
}

bool HostPulls::Copy(Ring<Pull>& pulls, uint32_t first, Budget& budget) {
  constexpr size_t kMost = 64;  // Pieces.
  std::array<iovec, kMost> into;
  std::array<iovec, kMost> from;
  std::array<Pull*, kMost> pieces{};
  size_t count = 0;
  uint64_t most = std::min(budget.bytes, kPieceBytes);
  bool any = false;
  outbox_->Enter();  // The peer does not give its memory back before Leave.
  for (uint32_t number = first; number != pulls.tail() && count < kMost && most > 0; ++number) {
    Pull& pull = pulls[number];
    if (!pull.from_host()) break;
    if (pull.whole()) continue;
    const PullRecord& record = pull.record;
    const LocalRegion* const region = context_->regions.Find(record.region, record.generation);
    pull.code = Check(record, region);
    if (pull.code != Code::kOk) {
      any = true;
      continue;
    }
    const uint64_t size = std::min(record.length - pull.submitted, most);
    into[count] = {.iov_base = region->address + record.offset + pull.submitted, .iov_len = size};
    from[count] = {.iov_base = reinterpret_cast<void*>(record.source_offset + pull.submitted),
                   .iov_len = size};
    pieces[count++] = &pull;
    most -= size;
  }
  CrossCopy::Outcome outcome;
  if (count > 0) outcome = paths_->copy.Read(std::span(into).first(count), std::span(from).first(count));
  const int error = outcome.error;
  uint64_t copied = outcome.bytes;
  for (size_t i = 0; i < count && copied > 0; ++i) {
    const uint64_t size = std::min<uint64_t>(into[i].iov_len, copied);
    pieces[i]->submitted += size;
    copied -= size;
    // Check 2, after the copy: the source was the writer's promise until here.
    if (!Stands(pieces[i]->record)) pieces[i]->code = Code::kCancelled;
  }
  outbox_->Leave();
  Pulled().Add(outcome.bytes);
  budget.bytes -= outcome.bytes;
  if (error != 0) return Fail(*pieces[0], error) || any;
  return any || count > 0;
}

/// Check 1.
Code HostPulls::Check(const PullRecord& record, const LocalRegion* region) const {
  if (region != nullptr && region->device != nullptr) region = nullptr;
  if (const Code code = JudgeWrite(*inbox_, record, region); code != Code::kOk) return code;
  if (!paths_->copy_reads) return Code::kUnavailable;
  return Stands(record) ? Code::kOk : Code::kCancelled;
}

bool HostPulls::Stands(const PullRecord& record) const {
  return outbox_->SourceStands({.id = record.source, .generation = record.source_generation});
}

bool HostPulls::Fail(Pull& pull, int error) {
  if (error == ESRCH) return false;
  pull.code = CrossCopy::CodeOf(error);
  if (pull.code == Code::kUnavailable) paths_->Refuse(paths_->copy_reads);  // The writer then copies itself.
  return true;
}

}  // namespace weightcast::transport::shm
