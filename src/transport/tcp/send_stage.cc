#include "transport/tcp/send_stage.h"

namespace weightcast::transport::tcp {

void SendStage::Use(const LocalRegion& region) {
  if (region.device == nullptr || in_use()) return;
  staging_ = region.device->staging;
  copiers_.UseBlocksOf(*staging_);
  blocks_ = Ring<Block>(kBlocks);
}

bool SendStage::Load(LocalRegion& region, uint64_t offset, uint64_t length, const Owner& owner) {
  if (blocks_.full()) return false;
  std::byte* const bytes = staging_->TakeForSending(blocks_.size());
  if (bytes == nullptr) return false;
  device::Engine& engine = copiers_.From(*region.device);
  const device::Copy copy{.to = bytes, .from = region.base + offset, .length = length};
  const auto ticket = engine.Submit({&copy, 1});
  if (!ticket) {
    staging_->Give(bytes);
    return false;
  }
  ++region.uses;
  blocks_.Push() = {.bytes = bytes,
                    .length = length,
                    .owner = owner,
                    .region = &region,
                    .engine = &engine,
                    .ticket = *ticket};
  return true;
}

/// The oldest block that has not left and shall.
SendStage::Block* SendStage::Next() {
  for (uint32_t number = blocks_.head(); number != blocks_.tail(); ++number) {
    Block& block = blocks_[number];
    if (block.state < Block::State::kHanded && !block.given_up) return &block;
  }
  return nullptr;
}

bool SendStage::IsNext(const Owner& owner) {
  Advance();
  const Block* const next = Next();
  const bool here = next != nullptr && next->state == Block::State::kLoaded && next->owner == owner;
  waits_ |= !here;
  return here;
}

SendStage::Piece SendStage::Hand() {
  Block& next = *Next();
  next.state = Block::State::kHanded;
  return {.bytes = next.bytes, .length = next.length};
}

void SendStage::Release() {
  waits_ = false;
  for (uint32_t number = blocks_.head(); number != blocks_.tail(); ++number) {
    if (blocks_[number].state == Block::State::kHanded) blocks_[number].state = Block::State::kDone;
  }
  Advance();
}

void SendStage::GiveUp(const Owner& owner) {
  for (uint32_t number = blocks_.head(); number != blocks_.tail(); ++number) {
    if (blocks_[number].owner == owner) blocks_[number].given_up = true;
  }
}

void SendStage::Abandon() {
  waits_ = false;
  for (uint32_t number = blocks_.head(); number != blocks_.tail(); ++number) {
    Block& block = blocks_[number];
    block.given_up = true;
    if (block.state == Block::State::kHanded) block.state = Block::State::kDone;
  }
  Advance();
}

bool SendStage::Advance() {
  bool any = false;
  for (uint32_t number = blocks_.head(); number != blocks_.tail(); ++number) {
    Block& block = blocks_[number];
    if (block.state != Block::State::kLoading || !block.engine->Over(block.ticket)) continue;
    block.state = Block::State::kLoaded;
    // Its link goes down for it.
    if (!block.engine->Arrived(block.ticket)) block.given_up = true;
    regions_.Unuse(*block.region);
    any = true;
  }
  for (; !blocks_.empty(); blocks_.Pop()) {
    const Block& oldest = blocks_.front();
    const bool dropped = oldest.given_up && oldest.state == Block::State::kLoaded;
    if (oldest.state != Block::State::kDone && !dropped) break;
    staging_->Give(oldest.bytes);
  }
  return any;
}

bool SendStage::quiet() const {
  for (uint32_t number = blocks_.head(); number != blocks_.tail(); ++number) {
    if (blocks_[number].state == Block::State::kLoading) return false;
  }
  return true;
}

}  // namespace weightcast::transport::tcp
