#include "transport/tcp/receive_stage.h"

#include <utility>

namespace weightcast::transport::tcp {

void ReceiveStage::Begin(LocalRegion& region, uint64_t offset, const GrantName& grant, For whom) {
  if (!in_use()) {
    staging_ = region.device->staging;
    copiers_.UseBlocksOf(*staging_);
    blocks_ = Ring<Block>(kBlocks);
  }
  region_ = &region;
  to_ = region.base + offset;
  grant_ = grant;
  whom_ = whom;
}

ReceiveStage::Block* ReceiveStage::Open() {
  if (blocks_.empty()) return nullptr;
  Block& newest = blocks_[blocks_.tail() - 1];
  const bool open = newest.state == Block::State::kFilling || newest.state == Block::State::kFull;
  return open ? &newest : nullptr;
}

std::span<std::byte> ReceiveStage::Room() {
  Block* block = Open();
  if (block != nullptr && block->state == Block::State::kFull) {
    if (!Submit(*block)) return {};
    block = nullptr;
  }
  if (block == nullptr) {
    if (blocks_.full()) return {};
    std::byte* const bytes = staging_->TakeForReceiving();
    if (bytes == nullptr) return {};
    block = &blocks_.Push();
    *block = {.bytes = bytes, .to = to_, .region = region_, .grant = grant_, .whom = whom_};
    ++region_->uses;
  }
  return std::span(block->bytes, staging_->block()).subspan(block->filled);
}

void ReceiveStage::Filled(size_t bytes) {
  Block& block = *Open();
  block.filled += bytes;
  to_ += bytes;
  if (block.filled < staging_->block()) return;
  block.state = Block::State::kFull;
  Submit(block);
}

void ReceiveStage::Yield() {
  Block* const block = Open();
  if (block == nullptr) return;
  if (block->filled == 0) return Drop(*block);
  block->state = Block::State::kFull;
  Submit(*block);
}

/// False: the device has enough under way.
bool ReceiveStage::Submit(Block& block) {
  device::Engine& engine = copiers_.To(*block.region->device);
  const device::Copy copy{.to = block.to, .from = block.bytes, .length = block.filled};
  const auto ticket = engine.Submit({&copy, 1});
  if (!ticket) return false;
  block.state = Block::State::kCopied;
  block.engine = &engine;
  block.ticket = *ticket;
  return true;
}

void ReceiveStage::Drop(Block& block) {
  block.state = Block::State::kDropped;
  staging_->Give(std::exchange(block.bytes, nullptr));
}

bool ReceiveStage::Advance() {
  bool any = false;
  if (Block* const block = Open(); block != nullptr && block->state == Block::State::kFull)
    any = Submit(*block);
  for (; !blocks_.empty(); blocks_.Pop()) {
    Block& block = blocks_.front();
    if (block.state == Block::State::kCopied) {
      if (!block.engine->Over(block.ticket)) break;
      failed_ |= !block.engine->Arrived(block.ticket);
      staging_->Give(block.bytes);
    } else if (block.state != Block::State::kDropped) {
      break;
    }
    regions_.Unuse(*block.region);
    any = true;
  }
  return any;
}

void ReceiveStage::Fence(const GrantName& grant) {
  Block* const block = Open();
  if (block != nullptr && block->whom == For::kPeersWrite && block->grant == grant) Drop(*block);
}

void ReceiveStage::Forget(const LocalRegion& region) {
  Block* const block = Open();
  if (block != nullptr && block->whom == For::kPeersWrite && block->region == &region) Drop(*block);
}

void ReceiveStage::Abandon() {
  if (Block* const block = Open(); block != nullptr) Drop(*block);
  Advance();
}

}  // namespace weightcast::transport::tcp
