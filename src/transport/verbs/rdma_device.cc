#include "transport/verbs/rdma_device.h"

#include <fcntl.h>

#include <cerrno>

#include "base/log.h"
#include "base/strings.h"
#include "topology/device_file.h"

namespace weightcast::transport::verbs {

bool SetNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

Status RdmaDevice::Open(ibv_device* device, uint8_t port) {
  name_ = device->name;
  context_ = api_->OpenDevice(device);
  if (context_ == nullptr)
    return Error(Code::kUnavailable, name_, ": ", topology::ReasonNotOpened(*device, errno));
  if (const int error = api_->QueryDevice(context_, &limits_); error != 0)
    return Failed("cannot query the device", error);
  if (limits_.phys_port_cnt > 1) name_ += StrCat(":", static_cast<int>(port));
  if (!SetNonBlocking(context_->async_fd)) return Failed("cannot set up its event descriptor", errno);
  return Status::Ok();
}

RdmaDevice::~RdmaDevice() {
  if (context_ != nullptr) api_->CloseDevice(context_);
}

Status RdmaDevice::Failed(std::string_view what, int error) const {
  return Error(Code::kUnavailable, name_, ": ", what, ": ", ErrnoText(error),
               "; check its driver with ibv_devinfo");
}

Status RdmaDevice::NotMade(std::string_view what) const {
  const int error = errno;
  return Error(Code::kExhausted, name_, ": cannot make ", what, ": ", ErrnoText(error),
               error == ENOMEM || error == EAGAIN ? "; raise the limit of locked memory (ulimit -l)"
                                                  : "; check its driver with ibv_devinfo and dmesg");
}

void RdmaDevice::Die(std::string_view reason) {
  if (dead_.exchange(true)) return;
  why_dead_ = Error(Code::kUnavailable, reason,
                    "; this process does not use the device any more: start the process again once it works");
  WC_LOG(kError, "verbs: ", why_dead_.message());
}

std::optional<ibv_async_event> RdmaDevice::NextEvent() {
  ibv_async_event event{};
  if (api_->GetAsyncEvent(context_, &event) == 0) {
    // At once: a queue pair with an event that is not acknowledged cannot be destroyed.
    const ibv_async_event copy = event;
    api_->AckAsyncEvent(&event);
    return copy;
  }
  if (errno == EIO && !std::exchange(removed_, true)) Die(StrCat(name_, ": the device was removed"));
  return std::nullopt;
}

}  // namespace weightcast::transport::verbs
