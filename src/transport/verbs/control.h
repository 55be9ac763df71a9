#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "transport/verbs/messages.h"
#include "transport/verbs/queue.h"
#include "transport/verbs/queue_events.h"

namespace weightcast::transport::verbs {

/// A link's control messages, over one control queue pair of each rail: numbered, in order, none twice. One
/// queue pair at a time carries them; when it breaks, what it had not delivered goes out again over another.
class Control {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    virtual void OnControl(const ControlMessage& message) = 0;
  };

  /// Work requests of a control queue pair, and messages under way at most.
  static constexpr uint32_t kDepth = 16;

  /// `rails`: how many queue pairs there may be; their indices are those of the link's queue pairs.
  Control(Host& host, QueueEvents& events, bool& moved, uint32_t rails, uint64_t own_cookie);
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  ~Control();

  /// The peer's, told in its answer.
  void SetPeerCookie(uint64_t cookie) { peer_cookie_ = cookie; }
  /// Sends the probe, if there is one. It carries messages from Open on.
  void Begin(uint32_t rail, std::unique_ptr<Queue> queue, std::optional<Probe> probe);
  void Open(uint32_t rail);
  /// Destroys the queue pair.
  void Break(uint32_t rail);
  /// Destroys all: nobody is there to receive a shutdown message.
  void Leave();
  [[nodiscard]] uint32_t rails() const { return static_cast<uint32_t>(rails_.size()); }
  [[nodiscard]] bool any_open() const;
  /// None is there any more, open or about to be.
  [[nodiscard]] bool lost() const;

  /// Writes nothing over each rail that carries no messages: a peer that is gone shows on all at once, not on
  /// one after another.
  void TestOthers();
  /// False: more wait than a peer that takes its messages can cause.
  [[nodiscard]] bool Send(const ControlMessage& message);
  /// All that was sent has been delivered.
  [[nodiscard]] bool delivered() const { return outgoing_.empty(); }

 private:
  class Rail;
  /// Messages that came before one that is missing: no correct peer has more under way.
  static constexpr size_t kAhead = 4 * kDepth;
  static constexpr size_t kMostWaiting = 1U << 20;

  void Flush();
  void OnDelivered(uint32_t rail, uint32_t count);
  void OnReceived(uint32_t rail, std::string_view bytes);

  Host& host_;
  QueueEvents& events_;
  bool& moved_;
  uint64_t own_cookie_;
  uint64_t peer_cookie_ = 0;
  std::vector<std::unique_ptr<Rail>> rails_;
  uint32_t carrier_ = 0;  ///< The rail that messages go over, while it is open.
  std::deque<Numbered> outgoing_;
  size_t posted_ = 0;  ///< The first ones of it, on the carrier.
  uint32_t next_out_ = 0;
  uint32_t next_in_ = 0;
  std::map<uint32_t, ControlMessage> ahead_;
};

}  // namespace weightcast::transport::verbs
