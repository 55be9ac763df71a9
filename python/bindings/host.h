#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "completions.h"
#include "keeper.h"
#include "support.h"
#include "weightcast/endpoint.h"

namespace weightcast::bindings {

/// Of a call on an endpoint that Python has closed.
inline Status EndpointClosed() {
  return {Code::kCancelled, "the endpoint was closed by this process; make a new one to go on"};
}

/// `seconds` from now; nullopt: no limit.
TimePoint DeadlineIn(std::optional<double> seconds);

/// Calls `look(until)`, which waits until `until` at most and returns a Status or, for "not yet", nothing:
/// again and again until there is a Status, or the deadline has passed (nothing), or Ctrl-C (kCancelled, with
/// the name of the call: `what`). `look` is called without the GIL.
template <typename Look>
std::optional<Status> LookUntil(const char* what, TimePoint deadline, const Look& look) {
  constexpr auto kBetweenLooks = std::chrono::milliseconds(50);
  return CallUnlocked([&]() -> std::optional<Status> {
    while (true) {
      const TimePoint now = Clock::now();
      const bool last = deadline <= now + kBetweenLooks;
      if (std::optional<Status> found = look(last ? deadline : now + kBetweenLooks)) return found;
      if (last && Clock::now() >= deadline) return std::nullopt;
      if (Interrupted()) {
        return Status(Code::kCancelled,
                      std::string(what) + " was interrupted by a signal; repeat the call to go on");
      }
    }
  });
}

/// What an endpoint's callbacks leave for the threads and event loops of Python. Any thread, without the GIL.
class Events {
 public:
  static constexpr Incarnation kAccept =
      0;  ///< Watched for connections; other numbers: for a peer's notices.

  void OnConnection(Connection connection);
  /// Notices have come from this peer, or its connection has ended.
  void OnPeer(Incarnation peer);
  void OnClose();
  [[nodiscard]] bool closed() const;

  /// The oldest connection that a peer opened and nobody has taken; waits until `until` at most.
  std::optional<Connection> Take(TimePoint until);
  /// Rings once at the next event of that kind, or now if there is nothing to wait for. Unwatch takes it
  /// back.
  void Watch(Incarnation what, Bell bell);
  void Unwatch(Incarnation what, const Bell& bell);

 private:
  static constexpr size_t kCrowd = 256;
  void Ring(Incarnation what);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::deque<Connection> accepted_;
  size_t crowd_ = kCrowd;  ///< When so many wait, those that have ended are thrown out.
  std::map<Incarnation, std::vector<Bell>> bells_;
};

/// An endpoint as Python has it: everything that stands for something of it holds this.
class Host {
 public:
  /// `options` without callbacks.
  static Result<std::shared_ptr<Host>> Create(EndpointOptions options);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  /// Runs `call(endpoint)` without the GIL. Raises where the endpoint is closed; closing waits for its end,
  /// but not until the GIL is back.
  template <typename Call>
  auto With(Call&& call) {
    return CallUnlocked([&] {
      const Use use(*this);
      return call(*endpoint_);
    });
  }
  /// Raises in a forked child.
  void Check() const;
  /// Ends calls that wait, and the endpoint once they have returned. Without the GIL.
  void Close();

  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] Events& events() { return *events_; }
  [[nodiscard]] const std::shared_ptr<Keeper>& keeper() const { return keeper_; }

 private:
  class Use {
   public:
    explicit Use(Host& host);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();

   private:
    Host& host_;
  };
  Host(Settings settings, std::shared_ptr<Events> events, std::unique_ptr<Endpoint> endpoint);

  const Settings settings_;
  const std::shared_ptr<Events> events_;
  const std::shared_ptr<Keeper> keeper_;
  std::unique_ptr<Endpoint> endpoint_;  ///< Ends when there are no uses any more.
  std::mutex mutex_;                    ///< Guards the two below.
  bool closing_ = false;
  uint32_t uses_ = 0;
  std::condition_variable unused_;
};

}  // namespace weightcast::bindings
