#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/ibverbs/ibverbs.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

using drivers::Ibverbs;

/// False: errno says why.
bool SetNonBlocking(int fd);

/// An RDMA device, opened for one of its ports, and whether this process still uses it.
///
/// Threads: once it is open name, api, context, limits, Failed, NotMade and dead from any thread; the rest
/// belongs to the holder of progress.
class RdmaDevice {
 public:
  explicit RdmaDevice(std::shared_ptr<Ibverbs> api) : api_(std::move(api)) {}
  RdmaDevice(const RdmaDevice&) = delete;
  RdmaDevice& operator=(const RdmaDevice&) = delete;
  /// All that was made there is gone.
  ~RdmaDevice();

  Status Open(ibv_device* device, uint8_t port);
  /// "mlx5_0", or "mlx5_0:2" on a device with several ports.
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Ibverbs& api() const { return *api_; }
  [[nodiscard]] ibv_context* context() const { return context_; }
  [[nodiscard]] const ibv_device_attr& limits() const { return limits_; }
  /// kUnavailable: a call of the driver failed with this errno.
  [[nodiscard]] Status Failed(std::string_view what, int error) const;
  /// kExhausted: the driver did not make it, and errno says why.
  [[nodiscard]] Status NotMade(std::string_view what) const;

  /// Memory that std::free takes. It is freed once the context is closed: until then the device may write
  /// there.
  void FreeWhenClosed(void* memory) { kept_.emplace_back(memory, &std::free); }

  /// It is not used any more by this process.
  void Die(std::string_view reason);
  [[nodiscard]] bool dead() const { return dead_.load(std::memory_order_relaxed); }
  [[nodiscard]] const Status& why_dead() const { return why_dead_; }
  /// The kernel has taken it away, and with it all that we had there.
  [[nodiscard]] bool removed() const { return removed_; }

  [[nodiscard]] int event_fd() const { return context_->async_fd; }
  /// Its next asynchronous event, already acknowledged. nullopt: there is none now, or it was removed.
  std::optional<ibv_async_event> NextEvent();

 private:
  std::shared_ptr<Ibverbs> api_;
  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_device_attr limits_{};
  std::atomic<bool> dead_ = false;
  Status why_dead_;
  bool removed_ = false;
  std::vector<std::unique_ptr<void, void (*)(void*)>> kept_;
};

}  // namespace weightcast::transport::verbs
