#include "endpoint/transfers/sender.h"

#include <algorithm>

#include "base/hash.h"
#include "base/strings.h"
#include "endpoint/transfers/grants.h"
#include "trace/metrics.h"

namespace weightcast::endpoint {

using transport::Op;
using transport::OpKind;

namespace {

Status RegionClosed() {
  return {Code::kCancelled,
          "this process closed the local region of the transfer; register its memory again"};
}

/// False: `next` does not follow `last` at both ends.
bool Extend(Op& last, const Op& next) {
  const bool follows = last.local == next.local && last.remote == next.remote &&
                       last.local_offset + last.length == next.local_offset &&
                       last.remote_offset + last.length == next.remote_offset;
  if (follows) last.length += next.length;
  return follows;
}

Op MakeOp(const Transfer::State& transfer, const ChunkPart& part, uint64_t cookie) {
  const PlacedPiece& piece = transfer.pieces[part.piece];
  return {.kind = transfer.kind,
          .local = piece.local_region,
          .local_offset = piece.local_offset + part.offset,
          .remote = transport::RemoteRegion{piece.remote_region},
          .remote_offset = piece.remote_offset + part.offset,
          .length = part.length,
          .grant = transfer.options.grant,
          .signal = {},
          .cookie = cookie,
          .after = transfer.options.after.get()};
}

/// Why the peer did not take a chunk.
Status Explain(const Transfer::State& transfer, Code code) {
  switch (code) {
    case Code::kFenced:
      return {code, transfer.options.grant.id == 0
                        ? "the peer's region is closed, or not open without a grant; write under one"
                        : "the peer revoked the grant; ask it for a new one"};
    case Code::kPermission:
      return {code,
              "the peer's region is closed or does not allow it, or the grant does not open these bytes; "
              "register it with another access, or write what the grant is for"};
    case Code::kOutOfBounds:
      return {code, "outside the peer's region; give a slice inside it"};
    case Code::kPeerDead:
      return {code, "the peer's process has ended; start it again and connect to it"};
    case Code::kInvalidArgument:
      return {code,
              "memory at one end was deregistered during the transfer, or the grant is malformed; register "
              "it again there, or give the grant as the peer opened it"};
    default:
      return Error(code, "the transport failed (", CodeName(code),
                   "); see the logs of both sides, and if they do not say why, report this as a bug");
  }
}

}  // namespace

void Sender::Start(const Path& path) {
  path_ = path;
  lanes_.assign(path.lanes, Lane{});
  slots_.assign(size_t{path.lanes} * path.window, Slot{});
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    slots_[i].next_free = i + 1 < slots_.size() ? i + 1 : kNone;
  }
  free_slot_ = slots_.empty() ? kNone : 0;
}

uint32_t Sender::lanes_up() const {
  return static_cast<uint32_t>(std::ranges::count(lanes_, true, &Lane::up));
}

// --- Transfers ---------------------------------------------------------------------------------

void Sender::Add(TransferRef added) {
  State& transfer = *added.Release();
  transfer.before = newest_;
  transfer.after = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->after) = &transfer;
  newest_ = &transfer;
  for (const auto* local : transfer.locals) {
    if (local->closing.load()) return End(transfer, RegionClosed());
  }
  if (transfer.bytes == 0 && !transfer.options.signal) return End(transfer, Status::Ok());
  if (!over_.ok()) return End(transfer, over_);
  waiting_.Add(transfer);
}

/// One timer for all, set for the earliest: mostly each new one is later, and most end long before.
void Sender::WatchDeadline(State& transfer) {
  if (transfer.phase.value() >= State::kEnded) return;
  const TimePoint deadline = transfer.options.deadline;
  if (deadline >= next_deadline_) return;
  hooks_.timers.Cancel(deadline_timer_);
  deadline_timer_ = hooks_.timers.Add(deadline, [this] { OnDeadline(); });
  next_deadline_ = deadline;
}

void Sender::OnDeadline() {
  const TimePoint now = Clock::now();
  next_deadline_ = TimePoint::max();
  const auto keep = oldest_ == nullptr ? nullptr : oldest_->connection;  // It holds us.
  for (State* next = oldest_; next != nullptr;) {
    State& transfer = *std::exchange(next, next->after);
    if (transfer.phase.value() >= State::kEnded) continue;
    if (transfer.options.deadline > now) {
      next_deadline_ = std::min(next_deadline_, transfer.options.deadline);
      continue;
    }
    End(transfer, Error(Code::kTimedOut, transfer.done, " of ", transfer.chunks,
                        " chunks of the transfer were done in time; check that the peer runs, or give "
                        "it longer (the timeout of this call, or setting timeout)"));
  }
  if (next_deadline_ == TimePoint::max()) return;
  deadline_timer_ = hooks_.timers.Add(next_deadline_, [this] { OnDeadline(); });
}

void Sender::End(State& transfer, Status outcome) {
  if (transfer.phase.value() >= State::kEnded) return;
  const TransferRef keep = Share(transfer);
  waiting_.Remove(transfer);
  transfer.resend.clear();
  if (!outcome.ok()) {
    outcome = Error(outcome.code(), transfer.kind == OpKind::kRead ? "read of " : "write of ",
                    HumanBytes(static_cast<double>(transfer.bytes)),
                    transfer.kind == OpKind::kRead ? " from " : " to ", hooks_.peer, ": ", outcome.message());
  }
  transfer.outcome = std::move(outcome);
  if (transfer.options.on_end) {
    hooks_.callbacks.Later(
        [on_end = std::move(transfer.options.on_end), status = transfer.outcome] { on_end(status); });
  }
  if (transfer.outstanding > 0) {
    transfer.phase.Set(State::kEnded);
    for (Lane& lane : lanes_) {
      if (lane.partial != kNone && slots_[lane.partial].transfer == &transfer) AbandonPartial(lane);
    }
  } else {
    Fence(transfer);
  }
}

void Sender::EndAll(const Status& outcome) {
  over_ = outcome;
  hooks_.timers.Cancel(deadline_timer_);
  next_deadline_ = TimePoint::max();
  for (State* next = oldest_; next != nullptr;) {
    State& transfer = *std::exchange(next, next->after);  // End may take it off the list.
    End(transfer, outcome);
  }
}

void Sender::EndUsing(const RegisteredMemory& registration) {
  for (State* next = oldest_; next != nullptr;) {
    State& transfer = *std::exchange(next, next->after);
    const bool uses =
        std::find(transfer.locals.begin(), transfer.locals.end(), &registration) != transfer.locals.end();
    if (uses) End(transfer, RegionClosed());
  }
}

void Sender::Fence(State& transfer) {
  const TransferRef keep = TransferRef::Adopt(&transfer);  // The list's own.
  (transfer.before == nullptr ? oldest_ : transfer.before->after) = transfer.after;
  (transfer.after == nullptr ? newest_ : transfer.after->before) = transfer.before;
  for (auto* local : transfer.locals) hooks_.regions.Done(*local);
  for (const uint32_t remote : transfer.remotes) hooks_.imports.Done(remote);
  transfer.locals.clear();
  transfer.remotes.clear();
  transfer.phase.Set(State::kFenced);
  transfer.connection.reset();
}

// --- From transfers to lanes ---------------------------------------------------------------------

bool Sender::Pump() {
  bool moved = false;
  for (Lane& lane : lanes_) {
    if (lane.partial != kNone) moved |= PostSlot(lane.partial);
  }
  while (!waiting_.empty()) {
    Lane* lane = BestLane();
    if (lane == nullptr) break;
    moved |= PostSlot(TakeSlot(waiting_.Next(), *lane));
  }
  return moved;
}

Sender::Lane* Sender::BestLane() {
  Lane* best = nullptr;
  for (Lane& lane : lanes_) {
    if (!lane.up || lane.partial != kNone || lane.chunks >= path_.window) continue;
    if (best == nullptr || lane.bytes < best->bytes) best = &lane;
  }
  return best;
}

/// Cuts the transfer's next chunk, or takes one to be sent again. The windows guarantee a free slot.
uint32_t Sender::TakeSlot(State& transfer, Lane& lane) {
  const uint32_t index = free_slot_;
  Slot& slot = slots_[index];
  free_slot_ = slot.next_free;
  slot.transfer = &transfer;
  slot.lane = static_cast<uint32_t>(&lane - lanes_.data());
  if (!transfer.resend.empty()) {
    slot.chunk = transfer.resend.back();
    transfer.resend.pop_back();
    MeasureChunk(slot, transfer);
  } else {
    slot.chunk = {.chunk = transfer.next_chunk++, .attempts = 0, .begin = transfer.next};
    MeasureChunk(slot, transfer);
  }
  ++transfer.outstanding;
  ++lane.chunks;
  lane.bytes += slot.bytes;
  if (transfer.resend.empty() && transfer.next_chunk == transfer.chunks) waiting_.Remove(transfer);
  return index;
}

/// Walks the chunk once: how long it is, its checksum where asked for, where the next one begins.
void Sender::MeasureChunk(Slot& slot, const State& transfer) {
  slot.walk = ChunkWalk(transfer.pieces, transfer.chunk_bytes, slot.chunk.begin);
  slot.bytes = 0;
  slot.checksum = 0;
  ChunkWalk walk = slot.walk;
  Hasher64 hasher;
  const bool checksum = transfer.options.checksum && transfer.options.signal;
  while (const auto part = walk.Next()) {
    slot.bytes += part->length;
    if (!checksum) continue;
    const PlacedPiece& piece = transfer.pieces[part->piece];
    const auto local = std::find_if(transfer.locals.begin(), transfer.locals.end(),
                                    [&](const auto& l) { return l->name.id == piece.local_region; });
    hasher.Add({(*local)->memory.address + piece.local_offset + part->offset, part->length});
  }
  if (checksum) slot.checksum = std::max<uint64_t>(hasher.Finish(), 1);
  if (slot.chunk.attempts == 0) slot.transfer->next = walk.cursor();
}

/// Posts what is left of a chunk; whether the transport took anything.
bool Sender::PostSlot(uint32_t index) {
  Slot& slot = slots_[index];
  Lane& lane = lanes_[slot.lane];
  const uint64_t cookie = uint64_t{slot.generation} << 32 | index;
  bool moved = false;
  bool full = false;
  while (!slot.posted_all && !full) {
    const size_t count = CutOps(slot, cookie, lane.batch);
    const size_t taken = path_.transport->Post(path_.link, slot.lane, {ops_.data(), count});
    slot.posted += static_cast<uint32_t>(taken);
    slot.walk = walks_[taken];
    moved |= taken > 0;
    full = taken < count;
    lane.batch = std::clamp<size_t>(full ? taken * 2 : lane.batch * 2, 4, kOpsAtOnce);
    slot.posted_all = !full && slot.walk.AtEnd();
  }
  const bool was_partial = lane.partial != kNone;
  lane.partial = slot.posted_all ? kNone : index;
  if (was_partial != (lane.partial != kNone)) partial_ += was_partial ? -1 : 1;
  return moved;
}

/// Fills ops_ with what comes next of a chunk, and walks_ with where each of them was cut from.
size_t Sender::CutOps(const Slot& slot, uint64_t cookie, size_t most) {
  const State& transfer = *slot.transfer;
  const uint64_t longest = transfer.device ? path_.longest_device : path_.longest_host;
  size_t count = 0;
  walks_[0] = slot.walk;
  while (count < most) {
    ChunkWalk walk = walks_[count];
    const auto part = walk.Next(longest);
    if (!part) break;
    ops_[count] = MakeOp(transfer, *part, cookie);
    // A copy by a device costs more to begin than to make: pieces that follow each other at both ends are
    // one.
    while (transfer.device && ops_[count].length < longest) {
      ChunkWalk ahead = walk;
      const auto next = ahead.Next(longest - ops_[count].length);
      if (!next || !Extend(ops_[count], MakeOp(transfer, *next, cookie))) break;
      walk = ahead;
    }
    walks_[++count] = walk;
  }
  if (slot.bytes == 0) {
    ops_[0] = Op{.kind = OpKind::kSignal, .grant = transfer.options.grant, .signal = {}, .cookie = cookie};
    walks_[++count] = slot.walk;
  }
  // What was refused of a chunk that was given up says nothing about this one.
  ops_[0].first = slot.posted == 0;
  if (transfer.options.signal && walks_[count].AtEnd()) {
    Op& last = ops_[count - 1];
    last.has_signal = true;
    last.signal = {
        .grant = transfer.options.grant,
        .transfer =
            SignalRange{.first = *transfer.options.signal, .count = transfer.options.signals}.Packed(),
        .chunk = slot.chunk.chunk,
        .chunks = transfer.chunks,
        .checksum = slot.checksum};
  }
  return count;
}

// --- Back from the transport -----------------------------------------------------------------------

void Sender::OnCompletion(const transport::Completion& completion) {
  const auto index = static_cast<uint32_t>(completion.cookie);
  if (index >= slots_.size()) return;
  Slot& slot = slots_[index];
  if (slot.transfer == nullptr || slot.generation != completion.cookie >> 32) return;
  ++slot.completed;
  if (completion.code == Code::kUnavailable || completion.code == Code::kCancelled) {
    slot.lost = true;
  } else if (completion.code != Code::kOk && slot.code == Code::kOk) {
    slot.code = completion.code;
  }
  FinishIfDone(index);
}

void Sender::FinishIfDone(uint32_t index) {
  Slot& slot = slots_[index];
  if (!slot.posted_all || slot.completed < slot.posted) return;
  const Slot finished = slot;
  Lane& lane = lanes_[slot.lane];
  --lane.chunks;
  lane.bytes -= slot.bytes;
  slot = Slot{.transfer = nullptr, .generation = slot.generation + 1, .next_free = free_slot_};
  free_slot_ = index;
  FinishChunk(*finished.transfer, finished);
}

void Sender::FinishChunk(State& transfer, const Slot& slot) {
  --transfer.outstanding;
  if (transfer.phase.value() >= State::kEnded) {
    if (transfer.outstanding == 0) Fence(transfer);
  } else if (slot.code != Code::kOk) {
    End(transfer, Explain(transfer, slot.code));
  } else if (slot.lost && slot.chunk.attempts >= kMaxAttempts) {
    End(transfer, Error(Code::kUnavailable, "a chunk was lost ", slot.chunk.attempts + 1,
                        " times on failing lanes; check the network to the peer"));
  } else if (slot.lost) {
    trace::CounterNamed("endpoint.chunks_resent").Add();
    transfer.resend.push_back(
        {.chunk = slot.chunk.chunk, .attempts = slot.chunk.attempts + 1, .begin = slot.chunk.begin});
    waiting_.Add(transfer);
  } else if (++transfer.done == transfer.chunks) {
    End(transfer, Status::Ok());
  }
}

void Sender::AbandonPartial(Lane& lane) {
  const uint32_t index = std::exchange(lane.partial, kNone);
  --partial_;
  slots_[index].posted_all = true;
  slots_[index].lost = true;
  FinishIfDone(index);
}

void Sender::OnLaneDown(uint32_t lane) {
  if (lane >= lanes_.size() || !std::exchange(lanes_[lane].up, false)) return;
  if (lanes_[lane].partial != kNone) AbandonPartial(lanes_[lane]);
}

void Sender::OnLaneUp(uint32_t lane) {
  if (lane < lanes_.size()) lanes_[lane].up = true;
}

void Sender::OnLinkClosed() {
  for (Lane& lane : lanes_) {
    lane.up = false;
    if (lane.partial != kNone) AbandonPartial(lane);
  }
  // By the contract every operation has completed by now; whatever has not must not hold up its owner.
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].transfer == nullptr) continue;
    slots_[i].completed = slots_[i].posted;
    slots_[i].lost = true;
    FinishIfDone(i);
  }
}

}  // namespace weightcast::endpoint
