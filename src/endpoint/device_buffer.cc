#include "weightcast/device_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "device/blocking_copies.h"
#include "device/buffer.h"
#include "device/describe.h"
#include "device/in_process.h"
#include "device/stream_event.h"

namespace weightcast {
namespace {

constexpr size_t kBetween = size_t{4} << 20;  ///< Host memory of a copy between two devices.

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

Status WaitStream(const StreamRef& stream, const Settings& settings, TimePoint deadline,
                  const std::function<bool()>& interrupted) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  WC_ASSIGN_OR_RETURN(const auto context, devices->gpus()->Retain(stream.device));
  return device::Synchronise(*context, stream.stream, deadline, interrupted);
}

Status CopyMemory(const Memory& to, const Memory& from, const Settings& settings) {
  if (to.length != from.length)
    return Error(Code::kInvalidArgument, "a copy of ", from.length, " bytes to ", to.length,
                 " bytes was asked for; give two sides of equal length");
  if (to.kind == MemoryKind::kHost && from.kind == MemoryKind::kHost) {
    std::memcpy(to.address, from.address, to.length);
    return Status::Ok();
  }
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  const auto copies = [&](int ordinal) -> Result<std::shared_ptr<device::BlockingCopies>> {
    WC_ASSIGN_OR_RETURN(auto context, devices->gpus()->Retain(ordinal));
    return device::BlockingCopies::Create(std::move(context));
  };
  if (to.kind == MemoryKind::kHost) {
    WC_ASSIGN_OR_RETURN(const auto reader, copies(from.device));
    return reader->ToHost({to.address, to.length}, from.address);
  }
  WC_ASSIGN_OR_RETURN(const auto writer, copies(to.device));
  if (from.kind == MemoryKind::kHost) return writer->ToDevice(to.address, {from.address, from.length});
  if (from.device == to.device) {
    const device::Copy copy{.to = to.address, .from = from.address, .length = to.length};
    return writer->Within({&copy, 1});
  }
  // By way of the host: that the two devices reach each other was not tried (docs/gpu.md, "Trial").
  WC_ASSIGN_OR_RETURN(const auto reader, copies(from.device));
  std::vector<std::byte> between(std::min<size_t>(to.length, kBetween));
  for (size_t at = 0; at < to.length; at += between.size()) {
    const std::span piece(between.data(), std::min<size_t>(between.size(), to.length - at));
    WC_RETURN_IF_ERROR(reader->ToHost(piece, from.address + at));
    WC_RETURN_IF_ERROR(writer->ToDevice(to.address + at, piece));
  }
  return Status::Ok();
}

}  // namespace weightcast
