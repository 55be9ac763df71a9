#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// What any thread sees of a connection. Its mutex is never taken for a chunk.
class ConnectionView {
 public:
  [[nodiscard]] std::string Describe() const;
  /// As described.
  [[nodiscard]] uint32_t lanes() const { return lanes_; }
  [[nodiscard]] std::string transport_name() const;
  [[nodiscard]] bool Moves(MemoryKind kind) const;
  /// No lock while it is ok.
  [[nodiscard]] Status status() const;
  /// Ready once, whatever came later.
  [[nodiscard]] bool was_ready() const;
  /// Ready and neither ended nor about to end.
  [[nodiscard]] bool usable() const;

  void SetReady(std::string transport_name, bool moves_device);
  void SetDescription(std::string description, uint32_t lanes);
  /// The first reason for its end that callers are told.
  void SetEnd(const Status& reason, std::string_view peer);

 private:
  mutable std::mutex mutex_;  ///< Guards all but the atomics.
  Status status_;
  std::atomic<bool> ok_{true};  ///< Whether status_ is.
  bool was_ready_ = false;
  std::string transport_name_;
  bool moves_device_ = false;
  std::string description_;
  std::atomic<uint32_t> lanes_ = 0;
};

}  // namespace weightcast::endpoint
