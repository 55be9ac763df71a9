#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// What a test between two hosts has measured, without opinion (docs/doctor.md, "Between hosts").
namespace weightcast::peertest {

inline constexpr int64_t kUnknown = -1;
inline constexpr std::string_view kNoRdmaDevice = "no RDMA device";

/// What one host says of itself.
struct HostReport {
  std::string weightcast = {};   ///< Version of the library.
  int64_t wire = 0;              ///< Version of the handshake of endpoints.
  std::string host = {};         ///< Its name.
  std::string boot_id = {};      ///< Equal on one running kernel.
  std::string instance = {};     ///< Random, of this process.
  std::string address = {};      ///< On the path between the two; numeric.
  std::string interface = {};    ///< That has this address; empty: none, the address is translated.
  int64_t mtu = kUnknown;        ///< Of the interface, in bytes.
  int64_t mbit = kUnknown;       ///< Its speed in Mbit/s; kUnknown also where a virtual one names a speed.
  std::string rdma = {};         ///< Why it has no RDMA, such as kNoRdmaDevice; empty: a port is active.
  std::string rdma_remedy = {};  ///< The command that repairs it; empty: nothing is broken.
  double unix_seconds = 0;       ///< Its clock.
};

/// Seconds of many exchanges. All zero: none came back.
struct Latency {
  int64_t samples = 0;
  int64_t lost = 0;
  double p50 = 0;
  double p99 = 0;
  double most = 0;
  double jitter = 0;      ///< Mean difference between one and the next.
  double jitter_p50 = 0;  ///< The median of these differences: a few that were late do not count.
};

/// What an RDMA port has counted.
struct PortCount {
  std::string name = {};  ///< "mlx5_0:1"
  int64_t packets = 0;    ///< Sent.
  int64_t repeats =
      0;  ///< Times that a queue pair sent packets again: a time-out, or a gap that was reported.
};

/// A size that was written for a while.
struct Rate {
  int64_t bytes = 0;      ///< Of each transfer.
  int64_t transfers = 0;  ///< That were counted.
  double gbit = 0;        ///< Gbit/s.
};

/// Bytes of IP packets. 0: not even the smallest pass.
struct PathMtu {
  std::string error = {};  ///< Why it is not known; empty: the rest holds.
  int64_t out = 0;         ///< The largest that reach the peer.
  int64_t back = 0;
  bool announced = false;  ///< The router that dropped larger ones said so, as TCP needs it.
};

/// The ports of the data plane, tried one by one. An error for each that failed.
struct Ports {
  std::vector<std::string> out = {};
  std::vector<std::string> back = {};
  int64_t tried_out = 0;
  int64_t tried_back = 0;
};

/// One of the library's transports.
struct TransportFacts {
  std::string name = {};          ///< "tcp", "verbs"
  std::string skipped = {};       ///< Why it was not tried.
  std::string error = {};         ///< What failed; what was measured before it stands.
  std::string connection = {};    ///< As the endpoint describes it.
  Latency latency = {};           ///< One way: half of a write there and one back.
  Latency device = {};            ///< The same of the two RDMA devices alone, without the library.
  std::string device_error = {};  ///< Why that was not measured.
  std::vector<Rate> out = {};     ///< By size.
  std::vector<Rate> back = {};
  double both_out = 0;  ///< Gbit/s while both directions are busy; 0: not measured.
  double both_back = 0;
  std::vector<PortCount> sent_here = {};  ///< By RDMA ports, of everybody, during the test.
  std::vector<PortCount> sent_there = {};
};

/// Round trips of UDP echoes of two classes, side by side.
struct ClassFacts {
  std::string error = {};
  int64_t traffic_class = 0;  ///< The second class; the first is 0.
  bool chosen = false;        ///< By the setting traffic_class.
  Latency plain_idle = {};
  Latency class_idle = {};
  Latency plain_loaded = {};  ///< While tcp loads the path in class 0.
  Latency class_loaded = {};
  Latency plain_marked = {};  ///< While tcp loads it in the second class.
  Latency class_marked = {};
};

/// The part of a test that failed, so that the rest could not be tried.
struct Failure {
  std::string stage = {};  ///< "reach", "token", "version", "busy", "test"; empty: none.
  std::string text = {};
};

struct PeerFacts {
  std::string target = {};  ///< As it was asked for.
  Failure failure = {};
  HostReport here = {};
  HostReport there = {};
  double connect_seconds = 0;  ///< Until both had proven the token.
  double clock_ahead = 0;      ///< Seconds: the peer's clock against this one's.
  double clock_within = -1;    ///< Half the round trip; negative: not compared.
  PathMtu mtu = {};
  Ports ports = {};
  std::vector<TransportFacts> transports = {};
  ClassFacts classes = {};
};

}  // namespace weightcast::peertest
