#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peertest/facts.h"
#include "peertest/messages.h"
#include "weightcast/clock.h"
#include "weightcast/endpoint.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

/// One side of a connection over one transport of the library, with memory of its own: what is measured is
/// what weightcast uses. Ping here and Pong there, or Write on either side or both at once; else one call at
/// a time.
class DataLink {
 public:
  struct Options {
    Settings settings = {};
    std::string transport = {};  ///< "tcp", "verbs"
    std::string address = {};    ///< This host's, on the path; used where no setting chooses another.
    std::string key = {};        ///< Of this test; text of a token.
    uint32_t rank = 0;           ///< 0 is tested, 1 tests.
    std::function<bool()> interrupted = {};  ///< Looked at about ten times a second; any thread.
  };
  static Result<std::unique_ptr<DataLink>> Open(Options options);

  [[nodiscard]] const LinkPlace& place() const { return place_; }
  /// Connects, or waits for the peer to connect. Errors name what failed; the other way may be tried then.
  Status Connect(const LinkPlace& peer);
  Status Await(const LinkPlace& peer);
  /// "tcp, 2 lanes, to ...". Once met.
  [[nodiscard]] std::string Describe() const;

  /// Seconds of one way: half of a write with its signal there and another one back.
  Result<std::vector<double>> Ping(uint32_t count);
  Status Pong(uint32_t count);
  /// Writes of so many bytes, one after another, for `seconds` and until the last have ended.
  Result<Rate> Write(uint64_t bytes, double seconds);

 private:
  class Arrival;
  explicit DataLink(Options options);
  Status Begin();
  Status Meet(Connection connection, const LinkPlace& peer);
  [[nodiscard]] Identity Peer(Incarnation incarnation) const;
  Result<GrantName> TradeGrants(const GrantName& ours);
  Status CheckStop() const;
  Status PingOnce(bool first, uint32_t number, const GrantName& ours, const GrantName& theirs,
                  std::optional<Transfer>& write);

  const Options options_;
  std::vector<std::byte> memory_;  ///< A half that is read, and one that the peer writes.
  const std::shared_ptr<Arrival> arrival_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Region> region_;  ///< After what it is a region of.
  std::optional<Connection> connection_;
  RemoteRegion remote_;
  LinkPlace place_;
};

}  // namespace weightcast::peertest
