#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/poller.h"
#include "base/socket.h"
#include "peertest/echo_socket.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

/// Answers the UDP packets of one test: those of one host that carry the key, in the class that they came in.
/// A thread of its own, which ends with it.
class EchoResponder {
 public:
  /// `at`: of this host; `peer`: whose packets are answered.
  static Result<std::unique_ptr<EchoResponder>> Start(const SocketAddress& at, const SocketAddress& peer,
                                                      PortRange ports);
  ~EchoResponder();
  [[nodiscard]] uint16_t port() const { return port_; }
  [[nodiscard]] std::string key() const;  ///< Hexadecimal.

 private:
  EchoResponder() = default;
  void Run();
  void AnswerAll();

  std::array<char, kEchoKeyBytes> key_{};
  std::string peer_;
  uint16_t port_ = 0;
  UniqueFd fd_;
  WakeFd stop_;
  std::thread thread_;
};

}  // namespace weightcast::peertest
