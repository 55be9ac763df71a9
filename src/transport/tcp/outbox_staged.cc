// What of the outbox is about device memory.
#include <algorithm>

#include "transport/tcp/outbox.h"

namespace weightcast::transport::tcp {

void Outbox::UseStage(const LocalRegion& region) {
  if (region.device == nullptr || stage_ != nullptr) return;
  stage_ = std::make_unique<SendStage>(StageParts{*region.device->staging, copiers_, regions_});
}

/// Begins copies of what will be sent next. Operations and the peer's reads take turns, but an operation is
/// loaded whole before anything else: nothing can go between its bytes.
void Outbox::LoadAhead() {
  bool any = true;
  while (any) {
    any = LoadOperation();
    if (load_offset_ == 0) any |= LoadService();
  }
}

bool Outbox::LoadOperation() {
  if (static_cast<int32_t>(load_operation_ - next_to_send_) < 0) load_operation_ = next_to_send_;
  for (; load_operation_ != operations_.tail(); ++load_operation_) {
    Operation& operation = operations_[load_operation_];
    if (operation.after != nullptr && !operation.after->Done()) {
      // Its device's failure is the link's from now on: no event of a lost context is ever over.
      if (operation.local != nullptr && operation.local->device != nullptr)
        copiers_.Of(*operation.local->device, Direction::kFromDevice);
      return false;
    }
    if (operation.kind != OpKind::kWrite || operation.local->device == nullptr || operation.length == 0)
      continue;
    const uint64_t length = std::min<uint64_t>(operation.length - load_offset_, stage_->block());
    if (!stage_->Load(*operation.local, operation.local_offset + load_offset_, length,
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

bool Outbox::LoadService() {
  if (static_cast<int32_t>(load_service_ - services_.head()) < 0) load_service_ = services_.head();
  for (; load_service_ != services_.tail(); ++load_service_) {
    Service& service = services_[load_service_];
    if (service.region == nullptr || service.region->device == nullptr) continue;
    if (service.loaded == service.length) continue;
    const uint64_t length = std::min<uint64_t>(service.length - service.loaded, stage_->block());
    if (!stage_->Load(*service.region, service.begin + service.loaded, length,
                      {SendStage::Owner::Kind::kService, load_service_})) {
      return false;
    }
    service.loaded += length;
    return true;
  }
  return false;
}

/// More of the operation whose frame is out. False: not all of it, and nothing else may follow yet.
bool Outbox::FillPayload() {
  while (payload_left_ > 0 && !batch_.full()) {
    if (!stage_->IsNext({SendStage::Owner::Kind::kOperation, next_to_send_})) {
      waits_for_copy_ = true;
      return false;
    }
    const SendStage::Piece piece = stage_->Hand();
    batch_.AddPayload(piece.bytes, piece.length, nullptr);
    payload_left_ -= piece.length;
  }
  if (payload_left_ > 0) return false;
  ++next_to_send_;
  return true;
}

}  // namespace weightcast::transport::tcp
