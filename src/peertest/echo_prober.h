#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/socket.h"
#include "peertest/echo_socket.h"
#include "peertest/facts.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

/// Sends packets to an EchoResponder. One thread's.
class EchoProber {
 public:
  /// `at`: this host's address on the path. Errors: kUnavailable, kProtocol for a key that is none.
  static Result<std::unique_ptr<EchoProber>> Open(const SocketAddress& at, const SocketAddress& to,
                                                  PortRange ports, const std::string& key);

  /// `here`, `there`: the interfaces' MTU, at least that of Ethernet where unknown. Bounded: about 10 s where
  /// much is lost.
  PathMtu FindPathMtu(int64_t here, int64_t there, const std::function<bool()>& interrupted);

  /// Round trips of small packets of class 0 and of `traffic_class`, taken in turn for `seconds`.
  std::pair<Latency, Latency> Compare(uint8_t traffic_class, double seconds,
                                      const std::function<bool()>& interrupted);

 private:
  struct Flight {
    TimePoint sent;
    double seconds = -1;  ///< Negative: no answer yet.
  };
  EchoProber() = default;
  /// Whether one of a few packets came back. Sizes are of IP packets.
  bool Passes(int64_t out, int64_t back);
  bool AwaitAnswer(uint32_t number, TimePoint deadline);
  void TakeAnswers(std::vector<Flight>& flights, uint32_t first);

  std::array<char, kEchoKeyBytes> key_{};
  UniqueFd fd_;
  size_t overhead_ = 0;
  uint32_t number_ = 0;
  bool told_ = false;  ///< Someone said that a packet was too large.
  std::vector<char> buffer_ = std::vector<char>(kMostEcho + 1);
};

}  // namespace weightcast::peertest
