#include "transport/shm/stage_ring.h"

#include <span>
#include <utility>

#include "base/log.h"
#include "device/pinned.h"

namespace weightcast::transport::shm {

/// The memory must stay mapped until it is unpinned, which the worker does.
struct StageRing::Pinned {
  std::shared_ptr<Mapping> mapping;
  std::shared_ptr<device::Worker> worker;
  std::unique_ptr<device::PinnedRange> range;

  Pinned(std::shared_ptr<Mapping> of, std::shared_ptr<device::Worker> by)
      : mapping(std::move(of)), worker(std::move(by)) {}
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    range.reset();
    worker->RunAfterCopies([kept = std::move(mapping)] {});
  }
};

void WarnOfBudget(std::string_view peer) {
  WC_LOG(kWarning, "device memory cannot go to or come from the peer (", peer,
         ") through host memory: other connections have pinned all that setting pinned allows; raise that "
         "setting");
}

StageRing::StageRing(Context& context, Mapping mapping, uint64_t budgeted, std::string peer)
    : context_(&context),
      mapping_(std::make_shared<Mapping>(std::move(mapping))),
      data_(mapping_->data()),
      length_(mapping_->size()),
      budgeted_(budgeted),
      peer_(std::move(peer)) {
  mapping_->HideFromChildren();
}

StageRing::~StageRing() {
  if (budgeted_ > 0) context_->devices()->stage_budget().Give(budgeted_);
}

StageRing::Pin StageRing::PinFor(const device::Device& device) {
  if (!std::exchange(asked_, true)) Begin(device);
  return pin_;
}

void StageRing::Begin(const device::Device& device) {
  DeviceSide& side = *context_->devices();
  if (budgeted_ == 0 && !side.stage_budget().TakeAll(length_)) {
    WarnOfBudget(peer_);
    pin_ = Pin::kRefused;
    return;
  }
  budgeted_ = length_;
  health_ = device.worker->health();
  const auto pinned = std::make_shared<Pinned>(mapping_, device.worker);
  device.worker->Run([pinned, reports = side.reports(), alive = std::weak_ptr(alive_), this] {
    auto range =
        device::PinnedRange::Pin(pinned->worker, std::span(pinned->mapping->data(), pinned->mapping->size()));
    if (range.ok()) pinned->range = std::move(range).value();
    reports->Leave([alive, this, pinned, status = range.status()] {
      if (!alive.expired()) OnPinned(status, pinned);
    });
  });
}

void StageRing::OnPinned(const Status& status, std::shared_ptr<Pinned> pinned) {
  pin_ = status.ok() ? Pin::kPinned : Pin::kRefused;
  if (status.ok()) {
    pinned_ = std::move(pinned);
    return;
  }
  WC_LOG(kWarning, length_,
         " bytes of host memory cannot be pinned, so device memory cannot go to or come from the peer (",
         peer_, "): ", status.message(),
         "; give this process more memory (its control group, the host) or lower setting pinned");
}

}  // namespace weightcast::transport::shm
