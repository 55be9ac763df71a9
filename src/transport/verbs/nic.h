#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "transport/verbs/completion_queue.h"
#include "transport/verbs/port.h"
#include "transport/verbs/protection_domain.h"
#include "transport/verbs/queue_table.h"
#include "transport/verbs/rdma_device.h"
#include "transport/verbs/receive_buffers.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// One port of one RDMA device with all that its queue pairs share; hands what completes and what the device
/// says to the owners of queue pairs. Its queue pairs and registrations go before it.
///
/// Threads: domain(), and what RdmaDevice allows, from any thread; the rest belongs to the holder of
/// progress.
class Nic {
 public:
  /// `index`: among this process's NICs, as region keys name it.
  static Result<std::unique_ptr<Nic>> Open(std::shared_ptr<Ibverbs> api, ibv_device* device, uint8_t port,
                                           uint8_t index, const Settings& settings);

  [[nodiscard]] uint8_t index() const { return index_; }
  [[nodiscard]] RdmaDevice& device() { return device_; }
  [[nodiscard]] const RdmaDevice& device() const { return device_; }
  [[nodiscard]] Port& port() { return port_; }
  [[nodiscard]] const Port& port() const { return port_; }
  [[nodiscard]] const ProtectionDomain& domain() const { return domain_; }
  [[nodiscard]] CompletionQueue& completions() { return completions_; }
  [[nodiscard]] QueueTable& queues() { return queues_; }
  [[nodiscard]] const QueueTable& queues() const { return queues_; }
  [[nodiscard]] const ReceiveBuffers& receives() const { return receives_; }

  /// Its port is up and the device is alive.
  [[nodiscard]] bool up() const { return port_.up() && !device_.dead(); }
  /// If it is not up.
  [[nodiscard]] const Status& why_down() const {
    return device_.dead() ? device_.why_dead() : port_.why_down();
  }
  /// Peers may still reach memory that is registered there.
  [[nodiscard]] bool reachable() const { return !device_.removed() && queues_.reachable(); }

  /// Hands a bounded number of completions to their owners; whether there were any.
  bool Poll();
  /// Until there are none, unless it is being polled.
  void Drain();
  /// LookAtEvents has something to tell.
  [[nodiscard]] bool changed() const { return state() != told_; }
  /// Ports that went down or came up, devices that died or were removed. Returns whether any has since the
  /// last call.
  bool LookAtEvents();

 private:
  Nic(std::shared_ptr<Ibverbs> api, uint8_t port, uint8_t index, const Settings& settings)
      : index_(index), device_(std::move(api)), port_(device_, port, settings) {}
  Status Init(ibv_device* device);
  void Dispatch(const ibv_wc& completion);
  void OnReceived(const ibv_wc& completion);
  void OnEvent(const ibv_async_event& event);
  /// Now; told_: as LookAtEvents has told it.
  [[nodiscard]] std::array<bool, 3> state() const { return {up(), device_.dead(), device_.removed()}; }

  const uint8_t index_;
  // Each is destroyed before those above it, which it was made with.
  RdmaDevice device_;
  Port port_;
  ProtectionDomain domain_{device_};
  CompletionQueue completions_{device_};
  QueueTable queues_;
  ReceiveBuffers receives_{device_};
  bool polling_ = false;
  std::array<bool, 3> told_{};
};

/// The ports that the setting `nics` allows, in the devices' order, whether up or not. kUnavailable: none.
Result<std::vector<std::unique_ptr<Nic>>> OpenNics(const std::shared_ptr<Ibverbs>& api,
                                                   const Settings& settings);

}  // namespace weightcast::transport::verbs
