#pragma once

#include <memory>
#include <string>

#include "weightcast/status.h"

namespace weightcast::trace {

/// Answers GET /metrics with PrometheusText(), to anybody who can reach the address: one thread
/// (`wc-metrics`) that waits for no peer, and no connection longer than two seconds. Ends with its last
/// holder.
class Exporter {
 public:
  /// `where`: "host:port" or "host:low-high" (the first free port). All who ask for the same in one process
  /// share one, as metrics are the process's. Errors: kInvalidArgument; kUnavailable when no port is free.
  static Result<std::shared_ptr<Exporter>> For(const std::string& where);
  virtual ~Exporter() = default;
  /// "127.0.0.1:9470"
  [[nodiscard]] virtual std::string address() const = 0;
};

}  // namespace weightcast::trace
