#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "weightcast/endpoint.h"

namespace weightcast::endpoint {

/// Who is at the other end of a connection.
struct Peer {
  Identity identity;
  uint64_t chunk = 0;   ///< Bytes of its chunks.
  std::string address;  ///< "10.0.0.1:4711", where it listens.
  std::string label;    ///< "trainer 0 (10.0.0.1:4711)".
};

/// What any thread sees of a connection. Its mutex is never taken for a chunk.
class ConnectionView {
 public:
  explicit ConnectionView(Peer peer) : peer_(std::move(peer)) {}

  [[nodiscard]] const Peer& peer() const { return peer_; }
  [[nodiscard]] std::string Describe() const;
  /// As described.
  [[nodiscard]] uint32_t lanes() const { return lanes_; }
  [[nodiscard]] std::string transport_name() const;
  /// No lock while it is ok.
  [[nodiscard]] Status status() const;
  /// Ready once, whatever came later.
  [[nodiscard]] bool was_ready() const;
  /// Ready and neither ended nor about to end.
  [[nodiscard]] bool usable() const;

  // Holder of progress, but for SetEnd, which is for any thread.
  void SetReady(std::string transport_name);
  /// The link in use, as its transport describes it, and how many of its lanes are up.
  void SetLink(std::string_view description, uint32_t lanes);
  /// The first reason for its end that callers are told.
  void SetEnd(const Status& reason);

 private:
  const Peer peer_;
  mutable std::mutex mutex_;  ///< Guards all but the atomics.
  Status status_;
  std::atomic<bool> ok_{true};  ///< Whether status_ is.
  bool was_ready_ = false;
  std::string transport_name_;
  std::string description_;
  std::atomic<uint32_t> lanes_ = 0;
};

}  // namespace weightcast::endpoint
