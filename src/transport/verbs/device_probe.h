#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/ibverbs/ibverbs.h"
#include "transport/verbs/nic.h"
#include "transport/verbs/queue.h"
#include "transport/verbs/queue_owner.h"
#include "weightcast/clock.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// One queue pair with nothing of the library above it: what two devices and the path between them take. One
/// on each host. One thread's, which is busy while it waits.
class DeviceProbe final : private QueueOwner {
 public:
  struct Options {
    Settings settings = {};
    std::function<bool()> interrupted = {};  ///< Looked at about ten times a second.
  };
  /// On the first port that is up of those that the setting nics leaves in.
  static Result<std::unique_ptr<DeviceProbe>> Open(std::shared_ptr<drivers::Ibverbs> api, Options options);
  DeviceProbe(const DeviceProbe&) = delete;
  DeviceProbe& operator=(const DeviceProbe&) = delete;
  ~DeviceProbe() override;

  /// What the other host's probe connects to.
  [[nodiscard]] std::string place() const;
  /// Both sides connect before either pings. Errors: kProtocol for a place that is none.
  Status Connect(std::string_view place);
  /// Seconds of one way: half of 8 bytes there, which the other side sees in its memory, and 8 bytes back.
  Result<std::vector<double>> Ping(uint32_t count);
  Status Pong(uint32_t count);
  /// "mlx5_0"
  [[nodiscard]] const std::string& name() const { return nic_->device().name(); }

 private:
  explicit DeviceProbe(Options options) : options_(std::move(options)) {}
  Status Init(std::shared_ptr<drivers::Ibverbs> api);
  Status Send(uint64_t number);
  Status Await(uint64_t number);
  [[nodiscard]] Status CheckStop(TimePoint deadline) const;
  [[nodiscard]] uint64_t* word(size_t at) const { return reinterpret_cast<uint64_t*>(page_.get() + at); }

  void OnSent(uint32_t sequence) override { queue_->Complete(sequence); }
  void OnSendError(uint32_t sequence, Code code, std::string_view reason) override;
  void OnMessage(std::string_view /*bytes*/) override {}
  void OnImmediate(uint32_t /*bits*/) override {}
  void OnBroken(Status reason) override { broken_ = std::move(reason); }

  const Options options_;
  std::unique_ptr<Nic> nic_;
  std::unique_ptr<std::byte, void (*)(void*)> page_{nullptr, &std::free};
  ibv_mr* region_ = nullptr;
  std::unique_ptr<Queue> queue_;
  uint64_t remote_ = 0;
  uint32_t rkey_ = 0;
  uint64_t last_ = 0;  ///< The number that was exchanged last.
  Status broken_;
};

}  // namespace weightcast::transport::verbs
