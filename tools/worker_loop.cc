#include "tools/worker_loop.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "tools/stop.h"

namespace weightcast::tools {
namespace {

constexpr double kSliceSeconds = 0.2;

}  // namespace

Status WaitInSlices(double seconds, const std::function<Status(double slice)>& wait) {
  const double limit = seconds > 0 ? seconds : std::numeric_limits<double>::max();
  const TimePoint start = Clock::now();
  for (;;) {
    WC_RETURN_IF_ERROR(CheckStop());
    const TimePoint now = Clock::now();
    const double left = limit - Seconds(now - start);
    const double slice = std::clamp(left, 0.0, kSliceSeconds);
    Status status = wait(slice);
    // What times out before its slice is over is the thing that was waited for.
    const bool early = Seconds(Clock::now() - now) < slice * 0.9;
    if (status.code() != Code::kTimedOut || early || left <= 0) return status;
  }
}

Result<Version> ReceiveVersion(Inference& inference, double finish_seconds) {
  Version version;
  WC_RETURN_IF_ERROR(WaitInSlices(0, [&](double slice) {
    auto received = inference.Receive(slice);
    if (received.ok()) version = *received;
    return received.status();
  }));
  WC_RETURN_IF_ERROR(WaitInSlices(finish_seconds, [&](double slice) { return inference.Finish(slice); }));
  return version;
}

}  // namespace weightcast::tools
