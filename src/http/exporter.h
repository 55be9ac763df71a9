#pragma once

#include <memory>
#include <string>

#include "http/server.h"
#include "weightcast/status.h"

namespace weightcast::http {

/// PrometheusText(), as each server answers GET /metrics.
Response MetricsResponse();

/// Answers GET /metrics to anybody who can reach the address, on a thread of its own (`wc-metrics`). Ends
/// with its last holder.
class Exporter {
 public:
  /// `where`: "host:port" or "host:low-high" (the first free port). All who ask for the same in one process
  /// share one, as metrics are the process's. Errors: kInvalidArgument; kUnavailable when no port is free.
  static Result<std::shared_ptr<Exporter>> For(const std::string& where);
  explicit Exporter(std::unique_ptr<Server> server) : server_(std::move(server)) {}
  /// "127.0.0.1:9470"
  [[nodiscard]] std::string address() const { return server_->address().ToString(); }

 private:
  const std::unique_ptr<Server> server_;
};

}  // namespace weightcast::http
