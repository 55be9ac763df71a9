#pragma once

#include <cstdint>
#include <string>

#include "transport/verbs/address.h"
#include "transport/verbs/lost_peers.h"
#include "transport/verbs/rdma_device.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::verbs {

/// One port of an RDMA device: whether it is up, and where peers reach it. Belongs to the holder of progress.
class Port {
 public:
  /// `device` is opened before Read and outlives it.
  Port(const RdmaDevice& device, uint8_t number, const Settings& settings);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Asks the device whether it is up, and under which address.
  void Read();
  /// The device says that it went down or came up, or has another address: the same, and tells the log.
  void OnChanged();

  [[nodiscard]] uint8_t number() const { return number_; }
  [[nodiscard]] bool up() const { return why_down_.ok(); }
  /// If it is not up.
  [[nodiscard]] const Status& why_down() const { return why_down_; }
  /// These three: as they were when it was last found up.
  [[nodiscard]] const Address& address() const { return address_; }
  [[nodiscard]] uint8_t gid_index() const { return gid_index_; }
  [[nodiscard]] uint16_t pkey_index() const { return pkey_index_; }
  /// Peers to which no queue pair could be connected.
  [[nodiscard]] LostPeers& lost_peers() { return lost_peers_; }

 private:
  Status ReadAddress();

  const RdmaDevice& device_;
  const uint8_t number_;
  const std::string gid_setting_;
  const std::string pkey_setting_;
  Status why_down_{Code::kUnavailable, "the RDMA port was not asked yet; please report this as a bug"};
  Address address_;
  uint8_t gid_index_ = 0;
  uint16_t pkey_index_ = 0;
  LostPeers lost_peers_;
};

}  // namespace weightcast::transport::verbs
