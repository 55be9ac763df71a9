#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/fd.h"
#include "base/poller.h"
#include "stream/connection.h"
#include "stream/keys.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// The address of the other end, for messages.
std::string PeerTextOf(int fd);

/// Connections between their whole ClientHello and their client's proof. However many come, a turn costs the
/// loop at most kAtOnce of their steps. One thread's, but for Add.
class Handshakes {
 public:
  static constexpr size_t kAtOnce = 16;

  struct Proven {
    std::unique_ptr<Connection> connection;  ///< The controller's proof is queued in it.
    Member member;
    std::string peer;  ///< Its address.
  };
  struct Options {
    std::shared_ptr<const ServerKeys> keys;
    size_t most = 256;         ///< Under way. Above it newcomers wait until the oldest goes (room_at).
    size_t most_waiting = 64;  ///< Handed over, not begun, until LimitWaiting.
    size_t most_queued = 0;    ///< Of each connection.
    Duration patience{};
    std::function<void(Proven)> on_proven;
    std::function<void()> wake;  ///< Add has been called. Any thread.
  };
  static Result<std::unique_ptr<Handshakes>> Create(Options options);

  /// A connection with a whole ClientHello to be read. Any thread. The newest is begun first, and the oldest
  /// ends where too many wait: its client is the likeliest to have given up.
  void Add(UniqueFd fd);
  /// How many may wait from now on.
  void LimitWaiting(size_t most);
  /// Readable when Step has work.
  [[nodiscard]] int fd() const { return poller_.fd(); }
  /// At most kAtOnce steps, each of one handshake.
  void Step();
  /// More than this turn's share was there.
  [[nodiscard]] bool busy() const { return busy_; }
  /// When Step has something to do although fd() is silent.
  [[nodiscard]] TimePoint deadline() const;

 private:
  struct UnderWay {
    std::unique_ptr<Connection> connection;
    Member member;
    std::string peer;
    TimePoint began;
  };
  Handshakes(Options options, TlsContext context)
      : options_(std::move(options)), context_(std::move(context)), most_waiting_(options_.most_waiting) {}
  /// When the oldest has had all its time.
  [[nodiscard]] TimePoint expiry() const;
  /// When one more may begin. Where as many are under way as may be, that is when the oldest has had its
  /// time. While others prove themselves, those under way are workers of a large job whose hosts are busy:
  /// they get more of it than strangers who replay what they have recorded.
  [[nodiscard]] TimePoint room_at() const;
  /// The newest that has not hung up; invalid when none waits or has room.
  [[nodiscard]] UniqueFd TakeWaiting();
  void Begin(UniqueFd fd);
  Status BeginTls(UniqueFd& fd, const std::string& peer);
  void Continue(uint64_t id);
  /// False when it is over.
  bool Advance(UnderWay& one);
  void Prove(UnderWay one);
  void End(uint64_t id);
  void EndExpired();

  Options options_;
  TlsContext context_;
  Poller poller_;
  std::map<uint64_t, UnderWay> under_way_;  ///< By age.
  uint64_t next_id_ = 1;
  TimePoint last_proven_{};
  bool busy_ = false;
  bool held_back_ = false;  ///< Some wait, and there is no room.

  std::mutex mutex_;
  size_t most_waiting_;
  std::deque<UniqueFd> waiting_;  ///< By age.
};

}  // namespace weightcast::stream
