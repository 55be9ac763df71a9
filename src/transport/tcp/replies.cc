#include "transport/tcp/replies.h"

#include <algorithm>

namespace weightcast::transport::tcp {

void Replies::Ack(uint32_t sequence) {
  ack_ = sequence;
  ack_due_ = true;
}

bool Replies::Answer(uint32_t sequence, Code code) {
  if (results_.size() >= depth_) return false;
  results_.Push() = {.sequence = sequence, .code = code};
  return true;
}

bool Replies::Serve(uint32_t sequence, LocalRegion& region, uint64_t offset, uint64_t length) {
  if (reads_.size() >= depth_) return false;
  stage_.Use(region);
  reads_.Push() = {.sequence = sequence,
                   .region = &region,
                   .offset = offset,
                   .left = length,
                   .length = length,
                   .begin = offset};
  return true;
}

void Replies::SayLaneOver(uint16_t lane, uint32_t generation, bool heard) {
  for (LaneOver& waiting : lanes_over_) {
    if (waiting.lane != lane) continue;
    waiting = {lane, std::max(waiting.generation, generation), waiting.heard && heard};
    return;
  }
  lanes_over_.push_back({lane, generation, heard});
}

void Replies::Forget(const LocalRegion& region) {
  for (uint32_t number = reads_.head(); number != reads_.tail(); ++number) {
    if (reads_[number].region != &region) continue;
    reads_[number].region = nullptr;
    stage_.GiveUp({SendStage::Owner::Kind::kRead, number});
  }
}

void Replies::Fill(SendBatch& batch) {
  for (; !lanes_over_.empty() && !batch.full(); lanes_over_.pop_back()) {
    const LaneOver& over = lanes_over_.back();
    batch.Add({.type = FrameType::kLaneOver,
               .sequence = over.generation,
               .grant{},
               .signal{},
               .lane = over.lane,
               .heard = over.heard});
  }
  for (; !results_.empty() && !batch.full(); results_.Pop()) AddResult(batch, results_.front());
  // An acknowledgement speaks for all before it but for those with a result: never ahead of results.
  if (ack_due_ && results_.empty() && !batch.full()) {
    batch.Add({.type = FrameType::kAck, .sequence = ack_, .grant{}, .signal{}});
    ack_due_ = false;
  }
}

void Replies::AddResult(SendBatch& batch, const Result& result) {
  batch.Add(
      {.type = FrameType::kResult, .sequence = result.sequence, .grant{}, .signal{}, .code = result.code});
}

bool Replies::FillRead(SendBatch& batch) {
  if (reads_.empty()) return false;
  const Read& read = reads_.front();
  if (read.region != nullptr && read.left > 0) return FillData(batch);
  AddResult(batch, {read.sequence, read.region == nullptr ? Code::kPermission : Code::kOk});
  reads_.Pop();
  return true;
}

bool Replies::FillData(SendBatch& batch) {
  Read& read = reads_.front();
  SendStage::Piece piece;
  const LocalRegion* served = nullptr;  // What is staged is in our own blocks.
  if (read.region->device == nullptr) {
    piece = {.bytes = read.region->base + read.offset, .length = std::min(read.left, kDataPiece)};
    served = read.region;
  } else {
    if (!stage_.IsNext({SendStage::Owner::Kind::kRead, reads_.head()})) return false;
    piece = stage_.Hand();
  }
  batch.Add(
      {.type = FrameType::kData, .sequence = read.sequence, .grant{}, .length = piece.length, .signal{}});
  batch.AddPayload(piece.bytes, piece.length, served);
  read.offset += piece.length;
  read.left -= piece.length;
  return true;
}

bool Replies::Load() {
  if (static_cast<int32_t>(load_read_ - reads_.head()) < 0) load_read_ = reads_.head();
  for (; load_read_ != reads_.tail(); ++load_read_) {
    Read& read = reads_[load_read_];
    if (read.region == nullptr || read.region->device == nullptr) continue;
    if (read.loaded == read.length) continue;
    const uint64_t length = std::min<uint64_t>(read.length - read.loaded, stage_.block());
    if (!stage_.Load(*read.region, read.begin + read.loaded, length,
                     {SendStage::Owner::Kind::kRead, load_read_})) {
      return false;
    }
    read.loaded += length;
    return true;
  }
  return false;
}

}  // namespace weightcast::transport::tcp
