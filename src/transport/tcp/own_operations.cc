#include "transport/tcp/own_operations.h"

#include <algorithm>
#include <utility>

namespace weightcast::transport::tcp {

OwnOperations::OwnOperations(const LinkShared& shared, SendStage& stage)
    : link_(shared.terms.id),
      depth_(shared.terms.depth),
      events_(shared.events),
      regions_(shared.regions),
      copiers_(shared.copiers),
      stage_(stage),
      operations_(depth_) {}

Code OwnOperations::Push(Op op, Code code, LocalRegion* local, const ImportedRegion& remote) {
  if (op.kind != OpKind::kRead && op.grant.slot < kGrantSlots) code = Refusal(op, code);
  if (code != Code::kOk) return code;
  if (local != nullptr) {
    ++local->uses;
    if (op.kind == OpKind::kWrite) stage_.Use(*local);
  }
  operations_.Push() = {.kind = op.kind,
                        .state = State::kQueued,
                        .has_signal = op.has_signal,
                        .first = op.first,
                        .region = remote.id,
                        .generation = remote.generation,
                        .local = local,
                        .local_offset = op.local_offset,
                        .remote_offset = op.remote_offset,
                        .length = op.length,
                        .received = 0,
                        .cookie = op.cookie,
                        .grant = op.grant,
                        .signal = op.signal,
                        .after = op.after};
  return Code::kOk;
}

/// `code`, or why the writes that this signal stands for were refused. Sets whether the op is the first that
/// the target sees of its signal.
Code OwnOperations::Refusal(Op& op, Code code) {
  bool& first = first_[op.grant.slot];
  first |= op.first;
  if (op.first) refusals_.Begin(op.grant);
  const bool signal = op.has_signal || op.kind == OpKind::kSignal;
  const Code earlier = signal ? refusals_.End(op.grant) : Code::kOk;
  if (code == Code::kOk) code = earlier;
  if (code == Code::kOk) {
    op.first = std::exchange(first, false);
  } else if (signal) {
    first = true;
  } else {
    refusals_.Note(op.grant, code);
  }
  return code;
}

void OwnOperations::Complete(Operation& operation, Code code) {
  operation.state = State::kDone;
  if (operation.local != nullptr) regions_.Unuse(*operation.local);
  events_.Push(Completion{link_, operation.cookie, code});
}

void OwnOperations::Retire() {
  while (!operations_.empty() && operations_.front().state == State::kDone) {
    if (next_to_ack_ == operations_.head()) ++next_to_ack_;
    operations_.Pop();
  }
}

void OwnOperations::FailAll(Code code) {
  for (uint32_t number = operations_.head(); number != operations_.tail(); ++number) {
    Operation& operation = operations_[number];
    if (operation.state != State::kDone) Complete(operation, code);
  }
  Retire();
  next_to_send_ = operations_.head();
  waits_for_event_ = false;
}

// --- The peer's answers

bool OwnOperations::IsOut(uint32_t sequence) const {
  return sequence - operations_.head() < next_to_send_ - operations_.head() &&
         operations_[sequence].state == State::kSent;
}

bool OwnOperations::IsRead(uint32_t sequence) const {
  return IsOut(sequence) && operations_[sequence].kind == OpKind::kRead;
}

std::string_view OwnOperations::OnAck(uint32_t sequence) {
  if (!IsOut(sequence) || operations_[sequence].kind == OpKind::kRead)
    return "it acknowledged an operation that is not in flight";
  // A write or signal still out is never behind next_to_ack_: the loop ends.
  for (; next_to_ack_ != sequence + 1; ++next_to_ack_) {
    Operation& operation = operations_[next_to_ack_];
    if (operation.state == State::kSent && operation.kind != OpKind::kRead) Complete(operation, Code::kOk);
  }
  Retire();
  return "";
}

std::string_view OwnOperations::OnResult(const Frame& frame) {
  if (!IsOut(frame.sequence)) return "it answered an operation that is not in flight";
  Operation& operation = operations_[frame.sequence];
  const bool whole = operation.kind == OpKind::kRead && operation.received == operation.length;
  if (frame.code == Code::kOk && !whole)
    return "it reported an operation as complete before all its bytes were sent";
  Complete(operation, frame.code);
  Retire();
  return "";
}

ReadPlace OwnOperations::ReadLanding(uint32_t sequence, uint64_t length) const {
  if (!IsRead(sequence)) return {};
  const Operation& operation = operations_[sequence];
  if (length > operation.length - operation.received) return {};
  return {.region = operation.local, .offset = operation.local_offset + operation.received};
}

// --- Sending

bool OwnOperations::Fill(SendBatch& batch) {
  waits_for_event_ = false;
  if (next_to_send_ == operations_.tail()) return false;
  Operation& operation = operations_[next_to_send_];
  if (operation.after != nullptr && !operation.after->Done()) {
    waits_for_event_ = true;
    return false;
  }
  const bool staged = IsStaged(operation);
  if (staged && !stage_.IsNext({SendStage::Owner::Kind::kOperation, next_to_send_})) return false;
  static constexpr FrameType kTypes[] = {FrameType::kWrite, FrameType::kRead, FrameType::kSignal};
  batch.Add({.type = kTypes[static_cast<size_t>(operation.kind)],
             .has_signal = operation.has_signal,
             .first = operation.first,
             .sequence = next_to_send_,
             .region = operation.region,
             .generation = operation.generation,
             .grant = operation.grant,
             .offset = operation.remote_offset,
             .length = operation.length,
             .signal = operation.signal});
  operation.state = State::kSent;
  if (staged) {
    payload_left_ = operation.length;
    return FillPayload(batch);
  }
  if (operation.kind == OpKind::kWrite && operation.length > 0) {
    batch.AddPayload(operation.local->base + operation.local_offset, operation.length, nullptr);
  }
  ++next_to_send_;
  return true;
}

bool OwnOperations::FillPayload(SendBatch& batch) {
  while (payload_left_ > 0 && !batch.full()) {
    if (!stage_.IsNext({SendStage::Owner::Kind::kOperation, next_to_send_})) return false;
    const SendStage::Piece piece = stage_.Hand();
    batch.AddPayload(piece.bytes, piece.length, nullptr);
    payload_left_ -= piece.length;
  }
  if (payload_left_ > 0) return false;
  ++next_to_send_;
  return true;
}

bool OwnOperations::Load() {
  if (static_cast<int32_t>(load_operation_ - next_to_send_) < 0) load_operation_ = next_to_send_;
  for (; load_operation_ != operations_.tail(); ++load_operation_) {
    Operation& operation = operations_[load_operation_];
    if (operation.after != nullptr && !operation.after->Done()) {
      // Its device's failure is the link's from now on: no event of a lost context is ever over.
      if (operation.local != nullptr && operation.local->device != nullptr)
        copiers_.From(*operation.local->device);
      return false;
    }
    if (!IsStaged(operation)) continue;
    const uint64_t length = std::min<uint64_t>(operation.length - load_offset_, stage_.block());
    if (!stage_.Load(*operation.local, operation.local_offset + load_offset_, length,
                     {SendStage::Owner::Kind::kOperation, load_operation_})) {
      return false;
    }
    load_offset_ += length;
    if (load_offset_ < operation.length) return true;
    load_offset_ = 0;
    ++load_operation_;
    return true;
  }
  return false;
}

}  // namespace weightcast::transport::tcp
