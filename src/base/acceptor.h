#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/listener.h"
#include "base/poller.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

namespace weightcast {

/// Accepts connections and holds each until its first bytes tell what it wants. Who connects and stays silent
/// keeps nobody out: of too many, silent ones end first. One thread, which never waits for a peer.
class Acceptor {
 public:
  /// The most that a peer may send before it is answered or handed over.
  static constexpr size_t kMostBytes = size_t{16} << 10;

  /// What a connection has sent: all of it, from the beginning.
  struct Opening {
    std::string_view bytes;
    size_t before = 0;  ///< How many of the bytes were there at the last look.
    int fd = -1;
  };
  struct Answer {
    enum class Then : uint8_t {
      kWait,  ///< More has to come.
      kTake,  ///< `take` gets the connection; nothing of it has been read.
      kEnd,   ///< Ends once `send` has gone out.
    };
    Then then = Then::kEnd;
    std::string send = {};
  };
  struct Options {
    const char* thread_name = "";
    std::vector<UniqueFd> listeners;
    size_t most = 1024;   ///< Held at once; at most a quarter of the descriptors.
    Duration patience{};  ///< With each, from its beginning to its end here.
    /// Both run on the acceptor's thread and must not block.
    std::function<Answer(const Opening&)> look;
    std::function<void(UniqueFd)> take = {};
  };

  static Result<std::unique_ptr<Acceptor>> Start(Options options);
  ~Acceptor();  ///< Closes the listeners and what is held.
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  struct Held {
    UniqueFd fd;
    TimePoint until;
    size_t seen = 0;
    std::string out;
    size_t drained = 0;
    bool ending = false;
    bool end_of_input = false;
  };
  using HeldMap = std::map<uint64_t, Held>;  ///< By age.

  explicit Acceptor(Options options) : options_(std::move(options)) {}
  Status Begin();
  void Run();
  void AcceptSome(int listener);
  void OutOfDescriptors(int listener, const Status& why);
  void Hold(UniqueFd fd);
  void EndOne();
  void End(HeldMap::iterator at);
  void EndExpired();
  void Serve(uint64_t id, uint32_t events);
  /// These are false when the connection is to be closed.
  bool Look(Held& held, bool closing, bool& take);
  static bool Drain(Held& held);
  static bool Flush(Held& held);

  Options options_;
  std::vector<Listener> listeners_;
  const int process_ = ::getpid();
  Poller poller_;
  WakeFd end_;
  UniqueFd spare_;  ///< Given up to accept, and so to turn away, a connection when there is no other.
  HeldMap held_;
  uint64_t next_id_ = 0;
  std::string buffer_;
  std::thread thread_;
};

}  // namespace weightcast
