#include "device/health.h"

#include "base/log.h"
#include "device/error.h"

namespace weightcast::device {

Status Health::Check(drivers::CUresult result, std::string_view call) {
  Status status = DriverStatus(context_->cuda(), result, call);
  if (LosesContext(result)) Lose(status);
  return status;
}

void Health::Lose(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (lost()) return;
  failure_ = why;
  lost_.store(true, std::memory_order_release);
  WC_LOG(kError, "device ", context_->ordinal(), " is lost to this process: ", why.message(),
         "; nothing is copied there any more, start the process again");
}

}  // namespace weightcast::device
