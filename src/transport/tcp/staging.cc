#include "transport/tcp/staging.h"

#include <algorithm>
#include <utility>

#include "device/describe.h"

namespace weightcast::transport::tcp {
namespace {

constexpr uint64_t kBlock = uint64_t{1} << 20;
constexpr uint64_t kPage = 4096;

/// Two blocks at least: one for each direction.
size_t BlockOf(uint64_t limit) { return std::min(kBlock, std::max(limit / 2 / kPage, uint64_t{1}) * kPage); }

}  // namespace

Result<std::unique_ptr<Staging>> Staging::Create(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(auto devices, device::DevicesInProcess(settings));
  WC_ASSIGN_OR_RETURN(auto signal, device::WakeSignal::Create());
  return std::unique_ptr<Staging>(new Staging(settings, std::move(devices), std::move(signal)));
}

Staging::Staging(const Settings& settings, std::shared_ptr<device::Devices> devices,
                 std::shared_ptr<device::WakeSignal> signal)
    : settings_(settings),
      block_(BlockOf(settings.pinned)),
      most_(settings.pinned / block_),
      devices_(std::move(devices)),
      signal_(std::move(signal)) {}

Staging::~Staging() {
  if (reserve_ != nullptr) pool_->Give(reserve_);
  pool_.reset();
  for (const auto& each : used_) each->device.worker->RemoveSignal(signal_);
}

Result<const StagedDevice*> Staging::Use(const DescribedMemory& memory) {
  WC_ASSIGN_OR_RETURN(auto device, devices_->Of(memory.ordinal));
  const Memory given{
      .kind = memory.kind, .device = memory.ordinal, .address = memory.address, .length = memory.length};
  WC_RETURN_IF_ERROR(device::Describe(device.worker->context(), given).status());
  const std::lock_guard lock(mutex_);
  for (const auto& each : used_) {
    if (each->device.worker == device.worker) return each.get();
  }
  device.worker->AddSignal(signal_);
  // Its blocks serve all devices: they are pinned for every context.
  if (pool_ == nullptr) {
    pool_ = std::make_unique<device::PinnedPool>(device.worker, block_, settings_.pinned);
  }
  used_.push_back(std::make_unique<StagedDevice>(
      StagedDevice{.staging = this, .ordinal = memory.ordinal, .device = std::move(device)}));
  return used_.back().get();
}

std::byte* Staging::TakeForSending(size_t held) {
  if (reserve_ == nullptr) reserve_ = pool_->Take();
  const bool allowed = reserve_ != nullptr && most_ - taken_ > held + 1;
  std::byte* const block = allowed ? pool_->Take() : nullptr;
  if (held == 0) hungry_ = block == nullptr;
  if (block != nullptr) ++taken_;
  return block;
}

std::byte* Staging::TakeForReceiving() {
  std::byte* block = pool_->Take();
  if (block == nullptr) block = std::exchange(reserve_, nullptr);
  hungry_ = block == nullptr;
  if (block != nullptr) ++taken_;
  return block;
}

void Staging::Give(std::byte* block) {
  --taken_;
  if (reserve_ == nullptr) {
    reserve_ = block;
  } else {
    pool_->Give(block);
  }
}

bool Staging::CanSend(size_t held) {
  const bool hungry = hungry_;
  std::byte* const block = TakeForSending(held);
  hungry_ = hungry;
  if (block != nullptr) Give(block);
  return block != nullptr;
}

Status Staging::failure() const {
  if (!pool_->refused() || pool_->pinned() >= 2) return Status::Ok();
  // Nothing can be pinned for a context that is lost either, and that is the reason then.
  const std::lock_guard lock(mutex_);
  for (const auto& each : used_) {
    if (const auto& health = each->device.worker->health(); health->lost()) return health->failure();
  }
  return {Code::kExhausted,
          "this process can pin no host memory to stage device memory for tcp; see its log, and give it more "
          "memory (its control group, the host)"};
}

}  // namespace weightcast::transport::tcp
