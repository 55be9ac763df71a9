#include "soak/tensors.h"

#include "weightcast/settings.h"

namespace weightcast::soak {

Result<std::unique_ptr<UsedDevice>> UsedDevice::Open(int ordinal) {
  WC_ASSIGN_OR_RETURN(const auto gpus, device::Gpus::Open(Settings(), drivers::CudaUse::kAsked));
  drivers::CUcontext context{};
  auto cuda = drivers::LoadCuda(drivers::CudaUse::kAsked);
  if (!cuda.ok()) return cuda.status();
  if ((*cuda)->DevicePrimaryCtxRetain(&context, ordinal) != drivers::CUDA_SUCCESS)
    return Status(Code::kInternal, "cuDevicePrimaryCtxRetain failed");
  std::unique_ptr<UsedDevice> used(new UsedDevice(*cuda, ordinal));
  WC_ASSIGN_OR_RETURN(used->context_, gpus->Retain(ordinal));
  WC_ASSIGN_OR_RETURN(used->copies_, device::BlockingCopies::Create(used->context_));
  return used;
}

UsedDevice::~UsedDevice() {
  copies_.reset();
  context_.reset();
  cuda_->DevicePrimaryCtxRelease(ordinal_);
}

Result<std::unique_ptr<Tensors>> Tensors::Make(const std::vector<TensorInfo>& model, test::Cut cut,
                                               uint32_t rank, uint32_t ranks, const UsedDevice* device) {
  std::unique_ptr<Tensors> made(new Tensors(test::Weights(model, cut, rank, ranks), device));
  made->shards_ = made->host_.shards();
  if (device == nullptr) return made;
  const std::byte* const begin = made->shards_.front().memory.address;
  const Memory& last = made->shards_.back().memory;
  WC_ASSIGN_OR_RETURN(
      made->buffer_,
      device::Buffer::Allocate(device->context(), static_cast<size_t>(last.address + last.length - begin)));
  for (Shard& shard : made->shards_) {
    const ptrdiff_t offset = shard.memory.address - begin;
    shard.memory = {.kind = MemoryKind::kDevice,
                    .device = device->context()->ordinal(),
                    .address = made->buffer_->address() + offset,
                    .length = shard.memory.length};
  }
  return made;
}

Status Tensors::ToHost() const {
  if (device_ == nullptr) return Status::Ok();
  std::byte* const begin = host_.shards().front().memory.address;
  return device_->copies().ToHost({begin, buffer_->length()}, buffer_->address());
}

Status Tensors::ToDevice() {
  if (device_ == nullptr) return Status::Ok();
  const std::byte* const begin = host_.shards().front().memory.address;
  return device_->copies().ToDevice(buffer_->address(), {begin, buffer_->length()});
}

Status Tensors::Fill(int64_t version) {
  const std::lock_guard lock(mutex_);
  host_.Fill(version);
  return ToDevice();
}

Result<int64_t> Tensors::Wrong(int64_t version) const {
  const std::lock_guard lock(mutex_);
  WC_RETURN_IF_ERROR(ToHost());
  return host_.Wrong(version);
}

Status Tensors::CopyFrom(const Tensors& from) {
  const std::scoped_lock lock(mutex_, from.mutex_);
  WC_RETURN_IF_ERROR(from.ToHost());
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Memory to = host_.shards()[i].memory;
    std::memcpy(to.address, from.host_.shards()[i].memory.address, to.length);
  }
  return ToDevice();
}

}  // namespace weightcast::soak
