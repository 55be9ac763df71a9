#include "worker/stream_gate.h"

#include <algorithm>

#include "base/strings.h"
#include "device/in_process.h"

namespace weightcast::worker {

Result<std::shared_ptr<StreamGate>> StreamGate::Record(const Settings& settings,
                                                       std::span<const StreamRef> streams,
                                                       const std::function<void()>& on_moved) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  std::vector<std::shared_ptr<device::StreamEvent>> events;
  for (const StreamRef& stream : streams) {
    WC_ASSIGN_OR_RETURN(auto device, devices->Of(stream.device));
    WC_ASSIGN_OR_RETURN(auto event,
                        device::StreamEvent::Record(std::move(device.worker), stream.stream, on_moved));
    events.push_back(std::move(event));
  }
  return std::shared_ptr<StreamGate>(new StreamGate(std::move(events)));
}

void StreamGate::Publish(const StreamGate* streams) {
  if (streams != nullptr) events_ = streams->events_;
  published_.store(true, std::memory_order_release);
}

bool StreamGate::Open() const {
  if (!published_.load(std::memory_order_acquire)) return false;
  return std::ranges::all_of(events_, [](const auto& event) { return event->Done(); }) || !status().ok();
}

Status StreamGate::status() const {
  if (!published_.load(std::memory_order_acquire)) return Status::Ok();
  for (const auto& event : events_) {
    const Status failure = event->failure();
    if (!failure.ok() && !event->Done())
      return Error(failure.code(), "the stream that publish() was given is lost: ", failure.message(),
                   "; look what runs on that stream");
  }
  return Status::Ok();
}

}  // namespace weightcast::worker
