#include "transport/shm/puller.h"

#include <algorithm>

#include "trace/metrics.h"
#include "transport/shm/peer_rights.h"

namespace weightcast::transport::shm {
namespace {

trace::Counter& Voided() {
  static trace::Counter& counter = trace::CounterNamed("gpu.voided_pulls");
  return counter;
}

bool Meet(const std::byte* x, uint64_t x_length, const std::byte* y, uint64_t y_length) {
  return x < y + y_length && y < x + x_length;
}

/// Whether both copy the same bytes to the same place: a write that is sent again.
bool SameBytes(const PullRecord& x, const PullRecord& y) {
  return x.source == y.source && x.source_generation == y.source_generation &&
         x.source_offset == y.source_offset && x.region == y.region && x.generation == y.generation &&
         x.offset == y.offset && x.length == y.length;
}

}  // namespace

Puller::Puller(const PullerParts& parts)
    : context_(&parts.context),
      inbox_(&parts.inbox),
      outbox_(&parts.outbox),
      engines_(&parts.engines),
      sources_(&parts.sources),
      life_(parts.life),
      host_(parts.context, parts.inbox, parts.outbox, parts.paths),
      pulls_(kMost) {
  Voided();  // Looked up here: finding it takes a lock.
}

bool Puller::Add(const PullRecord& record) {
  if (pulls_.full()) return false;
  Pull& newest = pulls_.Push();
  newest = Pull{};
  newest.record = record;
  return true;
}

void Puller::AddSignal(const SignalRecord& record) {
  Pull& newest = pulls_[pulls_.tail() - 1];
  newest.signal = record;
  newest.has_signal = true;
}

/// Check 1, and whether all is as the record says. kOk: `pull` can go on.
Code Puller::Check(const PullRecord& record, const LocalRegion* region, const Source* source) const {
  if (region != nullptr && region->device == nullptr) region = nullptr;
  if (const Code code = JudgeWrite(*inbox_, record, region); code != Code::kOk) return code;
  if (source == nullptr || source->state != Source::State::kReady) return Code::kCancelled;
  if (!InBounds(record.source_offset, record.length, source->length)) return Code::kOutOfBounds;
  return Stands(record) ? Code::kOk : Code::kCancelled;
}

bool Puller::Stands(const PullRecord& record) const {
  return outbox_->SourceStands({.id = record.source, .generation = record.source_generation});
}

/// Two copies that are under way must not touch the same bytes: the later pull waits. One that is a
/// repetition needs no copy of its own, because no writer changes a source before its first order of it is
/// answered.
bool Puller::Overlaps(const std::byte* to, uint64_t length, uint32_t end) {
  for (uint32_t number = pulls_.head(); number != end; ++number) {
    const Pull& before = pulls_[number];
    if (before.engine == nullptr || before.engine->Over(before.ticket)) continue;
    if (before.whole() && SameBytes(before.record, pulls_[end].record)) {
      pulls_[end].engine = before.engine;
      pulls_[end].ticket = before.ticket;
      pulls_[end].submitted = length;
      return true;
    }
    if (Meet(before.to, before.record.length, to, length)) return true;
  }
  return false;
}

/// What of the pull can be copied next; nullopt: nothing, now or, where its `code` says so, ever.
std::optional<device::Copy> Puller::Prepare(uint32_t number, uint64_t most) {
  Pull& pull = pulls_[number];
  const PullRecord& record = pull.record;
  const LocalRegion* const region = context_->regions.Find(record.region, record.generation);
  const Source* const source =
      region == nullptr || region->device == nullptr
          ? nullptr
          : sources_->Find({record.source, record.source_generation}, region->device->uuid());
  pull.code = Check(record, region, source);
  if (pull.code != Code::kOk) return std::nullopt;
  std::byte* const to = region->address + record.offset;
  if (pull.submitted == 0 && Overlaps(to, record.length, number)) return std::nullopt;
  pull.to = to;
  pull.next_engine = &engines_->Of(region->device->device);
  return device::Copy{.to = to + pull.submitted,
                      .from = source->At(record.source_offset + pull.submitted),
                      .length = std::min(record.length - pull.submitted, most),
                      .ends = source->EndsWith(region->device->uuid())};
}

/// Whether the next batch would not be full, and its device has enough to do meanwhile.
bool Puller::BetterWaits() {
  const PullRecord& front = pulls_[next_].record;
  const LocalRegion* const region = context_->regions.Find(front.region, front.generation);
  if (region == nullptr || region->device == nullptr || !engines_->Of(region->device->device).Busy())
    return false;
  uint64_t bytes = 0;
  uint32_t number = next_;
  for (; number != pulls_.tail() && bytes < kDevicePiece && number - next_ < kDeviceBatch; ++number)
    bytes += pulls_[number].record.length - pulls_[number].submitted;
  return bytes < kDevicePiece && number - next_ < kDeviceBatch;
}

bool Puller::Gather(Batch& batch) {
  bool any = false;
  for (uint32_t number = next_; number != pulls_.tail() && !batch.copies.full(); ++number) {
    Pull& pull = pulls_[number];
    if (pull.from_host()) break;
    if (pull.whole()) continue;
    const auto copy = Prepare(number, batch.copies.room());
    if (!copy && pull.whole()) {  // Refused, or a repetition.
      any = true;
      continue;
    }
    if (!copy || (batch.engine != nullptr && batch.engine != pull.next_engine)) break;
    if (batch.copies.Touches(copy->to, copy->length)) break;
    batch.Add(number, pull, *copy);
  }
  return any;
}

void Puller::Batch::Add(uint32_t number, const Pull& pull, const device::Copy& copy) {
  const PullRecord& record = pull.record;
  const bool same = newest != nullptr && newest->region == record.region && newest->source == record.source &&
                    newest->generation == record.generation &&
                    newest->source_generation == record.source_generation;
  engine = pull.next_engine;
  newest = &record;
  pieces[count++] = {.number = number, .length = copy.length};
  copies.Add(copy, same);
}

bool Puller::Submit(Budget& budget) {
  bool any = false;
  bool more = true;
  while (more && next_ != pulls_.tail()) {
    if (pulls_[next_].from_host()) {
      more = budget.bytes > 0 && host_.Copy(pulls_, next_, budget);
      any |= more;
    } else {
      more = !BetterWaits() && SubmitBatch(any);
    }
    while (next_ != pulls_.tail() && pulls_[next_].whole()) ++next_;
  }
  return any;
}

/// False: nothing was submitted. `any`: set if anything is done.
bool Puller::SubmitBatch(bool& any) {
  Batch batch;
  any |= Gather(batch);
  const auto ticket = batch.count == 0 ? std::nullopt : batch.engine->Submit(batch.copies.copies());
  if (!ticket) return false;
  for (size_t i = 0; i < batch.count; ++i) {
    Pull& pull = pulls_[batch.pieces[i].number];
    pull.engine = batch.engine;
    pull.submitted += batch.pieces[i].length;
    pull.ticket = *ticket;
  }
  return any = true;
}

Pull* Puller::Finished() {
  if (pulls_.empty()) return nullptr;
  Pull& oldest = pulls_.front();
  return oldest.Over() && !oldest.wants_signal() ? &oldest : nullptr;
}

Code Puller::Outcome(const Pull& pull, bool peer_ended) const {
  if (pull.code != Code::kOk || pull.engine == nullptr) return pull.code;
  if (!pull.engine->Arrived(pull.ticket)) return Code::kInternal;
  // Check 2, after the copy was over: the source was the writer's promise until here.
  if (peer_ended || !Stands(pull.record)) {
    Voided().Add();
    return peer_ended ? Code::kUnavailable : Code::kCancelled;
  }
  return Code::kOk;
}

void Puller::Pop() {
  if (next_ == pulls_.head()) ++next_;
  pulls_.Pop();
}

void Puller::Clear() {
  for (; !pulls_.empty(); Pop()) {
    if (pulls_.front().engine != nullptr) Voided().Add();
  }
}

}  // namespace weightcast::transport::shm
