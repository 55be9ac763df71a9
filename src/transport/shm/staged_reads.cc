#include "transport/shm/staged_reads.h"

#include <algorithm>

#include "transport/shm/peer_rights.h"

namespace weightcast::transport::shm {

bool StagedReads::Add(const GetRecord& record) {
  if (reads_.full()) return false;
  reads_.Push() = {.get = record};
  return true;
}

bool StagedReads::Run(Budget& budget) {
  bool any = false;
  while (!reads_.empty() && budget.bytes > 0 && out_->HasRoom()) {
    Read& read = reads_.front();
    const LocalRegion* const region = context_->regions.Find(read.get.region, read.get.generation);
    const Code code = JudgeRead(*inbox_, read.get, region);
    const Step step = code == Code::kOk ? BringPiece(read, *region, budget) : Refuse(read, code);
    if (step == Step::kWaits) break;
    any = true;
  }
  return any;
}

StagedReads::Step StagedReads::Refuse(const Read& read, Code code) {
  out_->Add(DataRecord{
      .flags = kLastPiece | kInStage, .code = static_cast<uint8_t>(code), .sequence = read.get.sequence});
  reads_.Pop();
  return Step::kDone;
}

StagedReads::Step StagedReads::BringPiece(Read& read, const LocalRegion& region, Budget& budget) {
  const device::Device* const device = region.device == nullptr ? nullptr : &region.device->device;
  const auto ready = out_->Ready(device);
  if (ready == StagedOut::State::kWaits) return Step::kWaits;
  if (ready == StagedOut::State::kFailed) return Refuse(read, out_->failure());
  const uint64_t size = std::min(read.get.length - read.done, out_->Most(device));
  const auto position = out_->Bring(device, region.address + read.get.offset + read.done, size);
  if (!position) return Step::kWaits;
  if (device == nullptr) budget.bytes -= std::min(budget.bytes, size);
  read.done += size;
  const bool last = read.done == read.get.length;
  out_->Announce(DataRecord{.flags = static_cast<uint8_t>(kInStage | (last ? kLastPiece : 0)),
                            .length = static_cast<uint32_t>(size),
                            .position = *position,
                            .sequence = read.get.sequence});
  if (last) reads_.Pop();
  return Step::kDone;
}

}  // namespace weightcast::transport::shm
