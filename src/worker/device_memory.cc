#include "worker/device_memory.h"

#include <algorithm>
#include <set>

#include "base/strings.h"
#include "device/describe.h"
#include "device/in_process.h"

namespace weightcast::worker {

Status DeviceMemories::Open() {
  if (devices_ == nullptr) {
    WC_ASSIGN_OR_RETURN(devices_, device::DevicesInProcess(settings_));
  }
  return Status::Ok();
}

Result<std::shared_ptr<device::BlockingCopies>> DeviceMemories::CopiesOf(int device) {
  const std::lock_guard lock(mutex_);
  WC_RETURN_IF_ERROR(Open());
  auto& copies = copies_[device];
  if (copies == nullptr) {
    WC_ASSIGN_OR_RETURN(auto context, devices_->gpus()->Retain(device));
    WC_ASSIGN_OR_RETURN(copies, device::BlockingCopies::Create(std::move(context)));
  }
  return copies;
}

Status DeviceMemories::FailureOf(std::span<const Shard> shards) {
  std::shared_ptr<device::Devices> devices;
  {
    const std::lock_guard lock(mutex_);
    devices = devices_;
  }
  if (devices == nullptr) return Status::Ok();
  std::set<int> asked;
  for (const Shard& shard : shards) {
    if (!IsOnDevice(shard) || !asked.insert(shard.memory.device).second) continue;
    const auto device = devices->Of(shard.memory.device);
    if (device.ok()) WC_RETURN_IF_ERROR(device->worker->health()->failure());
  }
  return Status::Ok();
}

Result<Allocation> DeviceMemories::AllocationOf(const Memory& memory) {
  std::shared_ptr<const device::Context> context;
  {
    const std::lock_guard lock(mutex_);
    WC_RETURN_IF_ERROR(Open());
    WC_ASSIGN_OR_RETURN(context, devices_->gpus()->Retain(memory.device));
  }
  WC_ASSIGN_OR_RETURN(const auto described, device::Describe(*context, memory));
  return described.memory.allocation;
}

bool AnyOnDevice(std::span<const Shard> shards) { return std::ranges::any_of(shards, IsOnDevice); }

Status CheckSettings(std::span<const Shard> shards, const Settings& settings) {
  const auto found = std::ranges::find_if(shards, IsOnDevice);
  if (found == shards.end() || settings.checksum == 0) return Status::Ok();
  return Error(Code::kInvalidArgument, "tensor ", found->tensor.name, " is in memory of GPU ",
               found->memory.device,
               ", which setting checksum does not cover; set checksum to 0 and compare to 1");
}

Status CheckPlaces(std::span<const Shard> shards, DeviceMemories& devices) {
  for (const Shard& shard : shards) {
    if (!IsOnDevice(shard) || shard.memory.length == 0) continue;
    const Status status = devices.AllocationOf(shard.memory).status();
    if (!status.ok()) return Error(status.code(), "tensor ", shard.tensor.name, ": ", status.message());
  }
  return Status::Ok();
}

Status HostCopy::Fill(DeviceMemories& devices, int device, const GatherSource& source, int64_t first,
                      int64_t count) {
  if (count == 0) return Status::Ok();
  WC_ASSIGN_OR_RETURN(const auto copies, devices.CopiesOf(device));
  const Reach reach = ReachOf(source, first, count);
  const int bits = BitsOf(source.dtype);
  const int64_t begin = reach.least * bits / 8;
  const int64_t end = ((reach.greatest + 1) * bits + 7) / 8;
  bytes_.resize(static_cast<size_t>(end - begin));
  WC_RETURN_IF_ERROR(copies->ToHost(bytes_, source.data + begin));
  data_ = bytes_.data() - begin;
  return Status::Ok();
}

}  // namespace weightcast::worker
