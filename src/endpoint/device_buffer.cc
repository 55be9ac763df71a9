#include "weightcast/device_buffer.h"

#include <utility>

#include "device/buffer.h"
#include "device/describe.h"
#include "device/in_process.h"
#include "device/stream_event.h"

namespace weightcast {
namespace {

class OwnBuffer final : public DeviceBuffer {
 public:
  explicit OwnBuffer(std::unique_ptr<device::Buffer> buffer) : buffer_(std::move(buffer)) {}
  [[nodiscard]] Memory memory() const override { return buffer_->memory(); }

 private:
  const std::unique_ptr<device::Buffer> buffer_;
};

}  // namespace

Result<std::shared_ptr<DeviceBuffer>> AllocateDevice(size_t bytes, int device, const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  WC_ASSIGN_OR_RETURN(auto context, devices->gpus()->Retain(device));
  WC_ASSIGN_OR_RETURN(auto buffer, device::Buffer::Allocate(std::move(context), bytes));
  return std::shared_ptr<DeviceBuffer>(std::make_shared<OwnBuffer>(std::move(buffer)));
}

Result<Memory> RecogniseMemory(std::span<std::byte> bytes, const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  return device::Recognise(*devices->gpus(), bytes);
}

Status WaitStream(const StreamRef& stream, const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  WC_ASSIGN_OR_RETURN(const auto context, devices->gpus()->Retain(stream.device));
  return device::Synchronise(*context, stream.stream);
}

}  // namespace weightcast
