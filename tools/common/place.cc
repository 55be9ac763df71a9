#include "tools/common/place.h"

#include "base/strings.h"
#include "device/in_process.h"

namespace weightcast::tools {

Result<std::shared_ptr<DeviceBlock>> MakeBlock(const ShardPlace& place, const Settings& settings,
                                               size_t bytes) {
  if (place.exact) {
    WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
    const size_t count = devices->gpus()->all().size();
    if (static_cast<size_t>(place.device) >= count)
      return Error(Code::kInvalidArgument, "there is no GPU ", place.device, " here; give one of the ", count,
                   " that are, counted from 0 (weightcast info lists them)");
  }
  const auto allocation = place.kind == "cuda-pages" ? DeviceAllocation::kPages : DeviceAllocation::kPlain;
  return DeviceBlock::Make(settings, place.device, allocation, bytes);
}

Result<uint32_t> ParseDevice(std::string_view flag, const std::string& text) {
  constexpr uint32_t kLargest = 1023;
  const auto device = ParseNumber<uint32_t>(text);
  if (!device || *device > kLargest)
    return Error(Code::kInvalidArgument, flag, ": '", text,
                 "' is not the number of a GPU; give one from 0, as weightcast info lists them");
  return *device;
}

void PlaceFlags::Declare(Flags& flags, std::string_view more) {
  flags.AddChoice(
      "--memory", memory_, {"host", "cuda", "cuda-pages"},
      StrCat("Where the weights lie: host memory; a GPU's, by cuMemAlloc, or in handles of 2 MiB", more));
  flags.Add("--device", device_, "NUMBER",
            "The GPU whose memory it is, as weightcast info counts; without it the first");
}

Result<ShardPlace> PlaceFlags::Parse() const {
  ShardPlace place{.kind = memory_};
  if (device_.empty()) return place;
  if (memory_ == "host")
    return Status(Code::kInvalidArgument, "--device is for --memory cuda or cuda-pages; add one of them");
  WC_ASSIGN_OR_RETURN(place.device, ParseDevice("--device", device_));
  place.exact = true;
  return place;
}

}  // namespace weightcast::tools
