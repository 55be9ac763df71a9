#include "transport/tcp/outbox.h"

#include <algorithm>

namespace weightcast::transport::tcp {
namespace {
/// Sent to one lane before others have their turn, also when its socket takes more.
constexpr uint64_t kSendBudget = 2U << 20;
}  // namespace

Outbox::Outbox(LinkId link, uint32_t depth, EventQueue& events, Regions& regions, Copiers& copiers)
    : link_(link),
      depth_(depth),
      events_(events),
      regions_(regions),
      copiers_(copiers),
      operations_(depth),
      results_(depth),
      services_(depth) {}

void Outbox::Push(const Op& op, LocalRegion* local, const ImportedRegion& remote) {
  if (local != nullptr) {
    ++local->uses;
    if (op.kind == OpKind::kWrite) UseStage(*local);
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
}

bool Outbox::IsOut(uint32_t sequence) const {
  return sequence - operations_.head() < next_to_send_ - operations_.head();
}

void Outbox::Complete(Operation& operation, Code code) {
  operation.state = State::kDone;
  if (operation.local != nullptr) regions_.Unuse(*operation.local);
  events_.Push(Completion{link_, operation.cookie, code});
}

void Outbox::Retire() {
  while (!operations_.empty() && operations_.front().state == State::kDone) {
    if (next_to_ack_ == operations_.head()) ++next_to_ack_;
    operations_.Pop();
  }
}

std::string_view Outbox::OnAck(uint32_t sequence) {
  if (!IsOut(sequence) || operations_[sequence].state != State::kSent ||
      operations_[sequence].kind == OpKind::kRead) {
    return "it acknowledged an operation that is not in flight";
  }
  // A write or signal still out is never behind next_to_ack_: the loop ends.
  for (; next_to_ack_ != sequence + 1; ++next_to_ack_) {
    Operation& operation = operations_[next_to_ack_];
    if (operation.state == State::kSent && operation.kind != OpKind::kRead) {
      Complete(operation, Code::kOk);
    }
  }
  Retire();
  return "";
}

std::string_view Outbox::OnResult(const Frame& frame) {
  if (!IsOut(frame.sequence) || operations_[frame.sequence].state != State::kSent) {
    return "it answered an operation that is not in flight";
  }
  Operation& operation = operations_[frame.sequence];
  const bool whole = operation.kind == OpKind::kRead && operation.received == operation.length;
  if (frame.code == Code::kOk && !whole)
    return "it reported an operation as complete before all its bytes were sent";
  Complete(operation, frame.code);
  Retire();
  return "";
}

ReadPlace Outbox::ReadLanding(uint32_t sequence, uint64_t length) {
  if (!IsRead(sequence)) return {};
  const Operation& operation = operations_[sequence];
  if (length > operation.length - operation.received) return {};
  return {.region = operation.local, .offset = operation.local_offset + operation.received};
}

bool Outbox::IsRead(uint32_t sequence) {
  return IsOut(sequence) && operations_[sequence].kind == OpKind::kRead &&
         operations_[sequence].state == State::kSent;
}

void Outbox::OnData(uint32_t sequence, uint64_t length) { operations_[sequence].received += length; }

void Outbox::FailAll(Code code) {
  for (uint32_t number = operations_.head(); number != operations_.tail(); ++number) {
    Operation& operation = operations_[number];
    if (operation.state != State::kDone) Complete(operation, code);
  }
  Retire();
  next_to_send_ = operations_.head();
  waits_for_event_ = false;
}

void Outbox::Abandon() {
  if (stage_ != nullptr) stage_->Abandon();
  waits_for_copy_ = false;
}

void Outbox::Ack(uint32_t sequence) {
  ack_ = sequence;
  ack_due_ = true;
}

bool Outbox::Answer(uint32_t sequence, Code code) {
  if (results_.size() >= depth_) return false;
  results_.Push() = {.sequence = sequence, .code = code};
  return true;
}

bool Outbox::Serve(uint32_t sequence, LocalRegion& region, uint64_t offset, uint64_t length) {
  if (services_.size() >= depth_) return false;
  UseStage(region);
  services_.Push() = {.sequence = sequence,
                      .region = &region,
                      .offset = offset,
                      .left = length,
                      .length = length,
                      .begin = offset};
  return true;
}

void Outbox::SayLaneOver(uint16_t lane, uint32_t generation, bool heard) {
  for (LaneOver& waiting : lanes_over_) {
    if (waiting.lane != lane) continue;
    waiting = {lane, std::max(waiting.generation, generation), waiting.heard && heard};
    return;
  }
  lanes_over_.push_back({lane, generation, heard});
}

void Outbox::Forget(const LocalRegion& region) {
  for (uint32_t number = services_.head(); number != services_.tail(); ++number) {
    if (services_[number].region != &region) continue;
    services_[number].region = nullptr;
    if (stage_ != nullptr) stage_->GiveUp({SendStage::Owner::Kind::kService, number});
  }
  batch_.Forget(region);
}

SendBatch::Outcome Outbox::Flush(int socket, bool& moved) {
  for (uint64_t sent = 0; sent < kSendBudget;) {
    if (batch_.empty()) Fill();
    if (batch_.empty()) return SendBatch::Outcome::kSent;
    const uint64_t due = batch_.bytes();
    sent += due;
    const bool few = operations_.size() <= kFew && services_.empty();
    const auto outcome = batch_.Send(socket, few);
    moved |= batch_.bytes() < due;
    if (outcome != SendBatch::Outcome::kSent) return outcome;
  }
  return SendBatch::Outcome::kBlocked;
}

void Outbox::Fill() {
  waits_for_copy_ = false;
  if (stage_ != nullptr) {
    stage_->Release();  // The batch is empty: the socket has it all.
    LoadAhead();
    if (payload_left_ > 0 && !FillPayload()) return;
  }
  while (!lanes_over_.empty() && !batch_.full()) {
    const LaneOver& over = lanes_over_.back();
    batch_.Add({.type = FrameType::kLaneOver,
                .sequence = over.generation,
                .grant{},
                .signal{},
                .lane = over.lane,
                .heard = over.heard});
    lanes_over_.pop_back();
  }
  while (!results_.empty() && !batch_.full()) {
    const Result& result = results_.front();
    batch_.Add(
        {.type = FrameType::kResult, .sequence = result.sequence, .grant{}, .signal{}, .code = result.code});
    results_.Pop();
  }
  // An acknowledgement speaks for all before it but for those with a result: never ahead of results.
  if (ack_due_ && results_.empty() && !batch_.full()) {
    batch_.Add({.type = FrameType::kAck, .sequence = ack_, .grant{}, .signal{}});
    ack_due_ = false;
  }
  // In turn, so that neither own operations nor the peer's reads starve the others.
  for (bool more = true; more && !batch_.full();) {
    more = FillOperation();
    if (payload_left_ > 0) return;
    if (!batch_.full()) more |= FillService();
  }
}

bool Outbox::FillOperation() {
  waits_for_event_ = false;
  if (next_to_send_ == operations_.tail()) return false;
  Operation& operation = operations_[next_to_send_];
  if (operation.after != nullptr && !operation.after->Done()) {
    waits_for_event_ = true;
    return false;
  }
  const bool staged =
      operation.kind == OpKind::kWrite && operation.local->device != nullptr && operation.length > 0;
  if (staged && !stage_->IsNext({SendStage::Owner::Kind::kOperation, next_to_send_})) {
    waits_for_copy_ = true;
    return false;
  }
  static constexpr FrameType kTypes[] = {FrameType::kWrite, FrameType::kRead, FrameType::kSignal};
  batch_.Add({.type = kTypes[static_cast<size_t>(operation.kind)],
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
    return FillPayload();
  }
  if (operation.kind == OpKind::kWrite && operation.length > 0) {
    batch_.AddPayload(operation.local->base + operation.local_offset, operation.length, nullptr);
  }
  ++next_to_send_;
  return true;
}

bool Outbox::FillService() {
  if (services_.empty()) return false;
  Service& service = services_.front();
  if (service.region == nullptr) {
    EndService(Code::kPermission);
  } else if (service.left == 0) {
    EndService(Code::kOk);
  } else {
    return FillData(service);
  }
  return true;
}

void Outbox::EndService(Code code) {
  batch_.Add({.type = FrameType::kResult,
              .sequence = services_.front().sequence,
              .grant{},
              .signal{},
              .code = code});
  services_.Pop();
}

bool Outbox::FillData(Service& service) {
  SendStage::Piece piece;
  const LocalRegion* served = nullptr;  // What is staged is in our own blocks.
  if (service.region->device == nullptr) {
    piece = {.bytes = service.region->base + service.offset, .length = std::min(service.left, kDataPiece)};
    served = service.region;
  } else if (stage_->IsNext({SendStage::Owner::Kind::kService, services_.head()})) {
    piece = stage_->Hand();
  } else {
    waits_for_copy_ = true;
    return false;
  }
  batch_.Add(
      {.type = FrameType::kData, .sequence = service.sequence, .grant{}, .length = piece.length, .signal{}});
  batch_.AddPayload(piece.bytes, piece.length, served);
  service.offset += piece.length;
  service.left -= piece.length;
  return true;
}

}  // namespace weightcast::transport::tcp
