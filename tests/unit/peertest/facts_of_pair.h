#pragma once

#include "peertest/facts.h"

namespace weightcast::peertest {

/// Two healthy hosts with 25 Gbit/s between them.
inline PeerFacts HealthyPair() {
  PeerFacts facts{.target = "node2:29751"};
  facts.here = {.weightcast = "0.1.0",
                .wire = 1,
                .host = "node1",
                .boot_id = "a",
                .instance = "1",
                .address = "10.0.0.1",
                .interface = "eth0",
                .mtu = 9000,
                .mbit = 25'000,
                .rdma = "no RDMA device"};
  facts.there = facts.here;
  facts.there.host = "node2";
  facts.there.boot_id = "b";
  facts.there.instance = "2";
  facts.there.address = "10.0.0.2";
  facts.connect_seconds = 2e-3;
  facts.clock_ahead = 1e-3;
  facts.clock_within = 2e-4;
  facts.mtu = {.out = 9000, .back = 9000};
  facts.ports = {.tried_out = 1, .tried_back = 1};
  const Latency latency{
      .samples = 1000, .p50 = 2e-5, .p99 = 5e-5, .most = 2e-4, .jitter = 3e-6, .jitter_p50 = 1e-6};
  facts.transports = {{.name = "tcp",
                       .connection = "tcp, 2 lanes",
                       .latency = latency,
                       .out = {{65536, 9, 12}, {1 << 20, 9, 22}},
                       .back = {{65536, 9, 12}, {1 << 20, 9, 21}},
                       .both_out = 18,
                       .both_back = 18},
                      {.name = "verbs", .skipped = "node1 has no RDMA device"}};
  facts.classes = {.traffic_class = 104,
                   .plain_idle = latency,
                   .class_idle = latency,
                   .plain_loaded = latency,
                   .class_loaded = latency,
                   .plain_marked = latency,
                   .class_marked = latency};
  return facts;
}

/// The same with RDMA.
inline PeerFacts HealthyRdmaPair() {
  PeerFacts facts = HealthyPair();
  facts.here.rdma = facts.there.rdma = "";
  facts.transports[1] = {.name = "verbs",
                         .connection = "verbs, 2 lanes",
                         .latency = {.samples = 1000, .p50 = 4e-6, .p99 = 9e-6, .most = 4e-5},
                         .device = {.samples = 1000, .p50 = 2e-6, .p99 = 4e-6, .most = 2e-5},
                         .out = {{1 << 20, 9, 24}},
                         .back = {{1 << 20, 9, 24}},
                         .both_out = 23,
                         .both_back = 23,
                         .sent_here = {{"mlx5_0:1", 900'000, 2}},
                         .sent_there = {{"mlx5_0:1", 900'000, 0}}};
  return facts;
}

}  // namespace weightcast::peertest
