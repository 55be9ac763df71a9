#include "device/copy_queue.h"

#include <utility>

#include "device/copy_core.h"

namespace weightcast::device {

CopyQueueOptions CopyOptions(const Settings& settings) {
  return {.streams = static_cast<int>(settings.copy_streams),
          .use_kernels = settings.gpu_kernels != 0,
          .blocks = static_cast<uint32_t>(settings.copy_blocks),
          .launched_within = settings.copy_by_kernel};
}

CopyQueue::CopyQueue(std::shared_ptr<Worker> worker, const CopyQueueOptions& options)
    : worker_(std::move(worker)), core_(std::make_shared<Core>(*worker_, options)) {
  worker_->Add(core_);
}

CopyQueue::~CopyQueue() {
  core_->Close();
  worker_->Wake();
}

std::optional<Ticket> CopyQueue::Submit(std::span<const Copy> copies) {
  const auto ticket = core_->Submit(copies);
  if (ticket) worker_->Wake();
  return ticket;
}

bool CopyQueue::Fits(size_t copies, uint64_t bytes) const { return core_->Fits(copies, bytes); }
std::optional<CopyQueue::Finished> CopyQueue::TakeFinished() { return core_->TakeFinished(); }
bool CopyQueue::HasFinished() const { return core_->HasFinished(); }
uint64_t CopyQueue::unfinished_bytes() const { return core_->unfinished_bytes(); }
Status CopyQueue::failure() const { return core_->failure(); }

}  // namespace weightcast::device
