#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "endpoint/connection.h"
#include "endpoint/context.h"

namespace weightcast::endpoint {

/// An endpoint's connections that have not ended, ready or not, and what the user is told of them.
class Connections {
 public:
  using ConnectionState = std::shared_ptr<Connection::State>;

  explicit Connections(const Context& context) : context_(context) {}

  // --- Any thread -----------------------------------------------------------------------------
  /// The connection to this incarnation.
  [[nodiscard]] ConnectionState Find(Incarnation peer) const;
  /// The same for a peer described as in Endpoint::Connect; null for "anyone".
  [[nodiscard]] ConnectionState FindMatching(const Identity& expected) const;
  [[nodiscard]] std::vector<ConnectionState> All() const;

  // --- Holder of progress -----------------------------------------------------------------------
  /// Returns the one in whose place it comes.
  ConnectionState Replace(const ConnectionState& connection);
  void OnReady(const ConnectionState& connection, transport::Role role);
  void OnEnded(const ConnectionState& connection, const Status& reason);
  /// Notices wait to be taken.
  void OnNotice(const ConnectionState& connection);

 private:
  const Context context_;
  mutable std::mutex mutex_;  ///< Guards live_.
  std::map<Incarnation, ConnectionState> live_;
};

}  // namespace weightcast::endpoint
