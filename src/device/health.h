#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "device/gpus.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// Whether a device's context still works. An error that stays (docs/gpu.md, "Failure") is found by whichever
/// call comes next, is logged once, and ends everything on that device. Any thread.
class Health {
 public:
  explicit Health(std::shared_ptr<const Context> context) : context_(std::move(context)) {}

  [[nodiscard]] const Context& context() const { return *context_; }
  [[nodiscard]] const std::shared_ptr<const Context>& shared_context() const { return context_; }
  [[nodiscard]] bool lost() const { return lost_.load(std::memory_order_acquire); }
  /// Why, in the driver's words; ok while it works.
  [[nodiscard]] Status failure() const { return lost() ? failure_ : Status::Ok(); }
  /// The outcome of a call ("cuMemcpyAsync"); one that loses the context is remembered.
  Status Check(drivers::CUresult result, std::string_view call);
  void Lose(const Status& why);

 private:
  const std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  std::atomic<bool> lost_{false};
  Status failure_;  ///< Written once, before lost_.
};

/// As WC_CALL_DRIVER, by Health::Check.
#define WC_CHECK_DRIVER(health, method, ...) \
  (health).Check((health).context().cuda().method(__VA_ARGS__), "cu" #method)

}  // namespace weightcast::device
