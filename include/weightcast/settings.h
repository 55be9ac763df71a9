#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast {

// The table of settings: X(type, name, default, unit, meaning).
// Each is a field of Settings, a flag (--lease 2) and an environment variable (WEIGHTCAST_LEASE=2).
// Types: String, Seconds (a Duration, written as seconds), Bytes (a count with optional K/M/G), Count.
// clang-format off
#define WC_SETTINGS(X)                                                                                        \
  X(String,  log_level,          "warning",         "name",      "debug, info, warning, error or off; printed to standard error") \
  X(String,  controller,         "127.0.0.1:29750", "host:port", "where the controller listens; the name is resolved again at each reconnect") \
  X(String,  job,                "default",         "name",      "workers and controllers of different jobs refuse each other") \
  X(String,  token_file,         "",                "path",      "file with the job token; empty: the one that a controller on loopback writes for its user") \
  X(String,  interface,          "",                "names",     "network interfaces to offer, comma separated; with ^ in front: to leave out; empty: all") \
  X(String,  bind,               "",                "address",   "address that the data plane listens on; empty: loopback where the controller is there, otherwise all") \
  X(String,  advertise,          "",                "addresses", "addresses told to peers, comma separated, instead of those found") \
  X(String,  port_range,         "",                "low-high",  "ports the data plane listens on; empty: any free one") \
  X(String,  transport,          "",                "names",     "transports that may be used, comma separated, best first; empty: all that work") \
  X(String,  ptracer,            "off",             "off|peer|any", "who may trace this process for the sake of shm, where Yama reserves tracing for parents: nobody more, one peer, every process of the user") \
  X(Count,   lanes,              "0",               "lanes",     "lanes of each connection: sockets over tcp, data queue pairs over verbs; 0: chosen by the transport and the number of peers") \
  X(Bytes,   chunk,              "1M",              "bytes",     "size of the pieces that a transfer is cut into, 4K to 64M") \
  X(Count,   window,             "16",              "chunks",    "chunks in flight on one lane") \
  X(String,  nics,               "",                "names",     "RDMA devices to use, comma separated (mlx5_0, or mlx5_0:2 for a port); with ^ in front: to leave out; empty: all that are up") \
  X(String,  gid_index,          "",                "number",    "entry of a port's GID table; empty: RoCE v2, IPv4-mapped preferred") \
  X(String,  pkey,               "",                "hex",       "partition to use on InfiniBand, such as 0x8001; empty: a port's first with full membership") \
  X(String,  traffic_class,      "",                "class",     "of packets with data over tcp and RDMA: a DSCP name (cs0 to cs7, af11 to af43, ef, le) or the byte (DSCP times four, 0 to 255); empty: unchanged") \
  X(Count,   service_level,      "0",               "0-15",      "of RDMA packets on InfiniBand") \
  X(Count,   rdma_timeout,       "0",               "0-31",      "a queue pair sends again after 4.096 us times 2 to this; 0: so that it gives up after a quarter of the lease") \
  X(Count,   rdma_retries,       "6",               "0-7",       "how often a queue pair sends again before it gives up; 7 is for ever to soft-RoCE") \
  X(Count,   rnr_retries,        "7",               "0-7",       "how often a queue pair waits for a peer that has no room for a message; 7: for ever") \
  X(String,  gpu,                "auto",            "auto|off",  "auto: device memory is moved where the process uses CUDA; off: it is refused, and no driver is loaded") \
  X(Bytes,   pinned,             "64M",             "bytes",     "most host memory that an endpoint pins to stage device memory that cannot be copied directly; at least 1M") \
  X(Count,   copy_streams,       "2",               "streams",   "CUDA streams on which a GPU copies for one connection, 1 to 8") \
  X(Count,   copy_blocks,        "32",              "blocks",    "of each launch of the kernel that copies on a GPU, 1 to 1024: more are faster within a GPU and leave fewer multiprocessors to others") \
  X(Bytes,   copy_by_kernel,     "8M",              "bytes",     "copies within a GPU are made by a kernel where they have at most this on average, and by its copy engine otherwise; 0: never by a kernel") \
  X(Count,   gpu_kernels,        "1",               "0|1",       "1: a GPU casts and gathers the tensors in its own memory; 0: they are cast and gathered in host memory") \
  X(Bytes,   staging,            "256M",            "bytes",     "most memory a trainer uses to stage tensors that need a cast, are not contiguous or are read from a file") \
  X(Seconds, lease,              "5",               "s",         "a process that sends no heartbeat for this long is declared dead") \
  X(Seconds, timeout,            "60",              "s",         "limit of a transfer and of each step of an update that has no limit of its own") \
  X(Seconds, grant_timeout,      "600",             "s",         "how long an update waits for an engine to come to begin() or wait()") \
  X(Seconds, connect_timeout,    "10",              "s",         "limit of making one connection") \
  X(Seconds, commit_timeout,     "30",              "s",         "how long an update waits for an engine that has every byte to switch and answer") \
  X(Seconds, controller_timeout, "0",               "s",         "blocking calls end after this long without a controller; 0: twice the lease") \
  X(Seconds, join_timeout,       "300",             "s",         "how long a worker waits for the other workers of its plan") \
  X(Count,   min_engines,        "1",               "engines",   "the controller makes its first plan only when so many engines are whole") \
  X(String,  policy,             "all",             "all|each",  "engines switch to a version together, or each when it is ready") \
  X(String,  strategy,           "balanced",        "name",      "planner: balanced, or the plain greedy one") \
  X(Bytes,   plan_memory,        "0",               "bytes",     "most memory that making a plan may take; a larger one is refused; 0: half of what is available") \
  X(String,  tables,             "",                "folder",    "shared folder through which tables are handed out; empty: by network") \
  X(String,  metrics,            "",                "host:port", "serve /metrics for Prometheus there; a range of ports, host:low-high, where several processes share the host; empty: not at all") \
  X(Count,   checksum,           "0",               "0|1",       "1: receivers verify a checksum of every transfer before they are ready; refused with GPU memory, where compare does it") \
  X(Count,   compare,            "0",               "0|1",       "inference: 1: each update is compared with its sources by digest, tensor by tensor, before its ranks are ready")
// clang-format on

/// One row of the table, for documentation and command lines.
struct SettingInfo {
  std::string_view name;  ///< "connect_timeout"
  std::string_view type;  ///< "String", "Seconds", "Bytes" or "Count"
  std::string_view default_value;
  std::string_view unit;
  std::string_view meaning;
};

/// Every setting with a valid value. Plain data: copy it freely.
struct Settings {
  // Field types by the names used in the table.
  using String = std::string;
  using Seconds = Duration;
  using Bytes = uint64_t;
  using Count = int64_t;
#define WC_FIELD(type, name, default_value, unit, meaning) type name{};
  WC_SETTINGS(WC_FIELD)
#undef WC_FIELD

  /// All defaults.
  Settings();
  /// Defaults, then WEIGHTCAST_*. An unknown WEIGHTCAST_ name is warned about once; a bad value is an error.
  static Result<Settings> FromEnvironment();
  /// FromEnvironment, then `overrides` (name → text), as a program's options. Unknown names are errors.
  static Result<Settings> From(const std::map<std::string, std::string>& overrides);
  /// Sets one from text; the error names the setting, the text and what is allowed.
  Status Set(std::string_view name, std::string_view text);
  /// The value as text that Set takes.
  [[nodiscard]] std::string Get(std::string_view name) const;
};

/// The whole table, in its order.
std::span<const SettingInfo> SettingsTable();
/// "WEIGHTCAST_CONNECT_TIMEOUT".
std::string EnvironmentName(std::string_view setting);
/// docs/settings.md, generated.
std::string SettingsMarkdown();

}  // namespace weightcast
