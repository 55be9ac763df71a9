#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/backoff.h"
#include "transport/verbs/link_state.h"
#include "transport/verbs/queue_events.h"
#include "transport/verbs/rails.h"

namespace weightcast::transport::verbs {

/// The queue pairs of one link: how each fails and begins again, one generation after the other.
/// docs/verbs.md, "Failure".
class QueuePairs final : public QueueEvents {
 public:
  enum class Stage : uint8_t {
    kMade,     ///< Not connected yet.
    kProbing,  ///< Connected; initiator: our probe is out; responder: it has to come.
    kUp,
    kEnding,   ///< Ours is destroyed; the peer's may not be.
    kOver,     ///< Both are.
    kOffered,  ///< Initiator: the next generation is offered.
  };
  /// One queue pair's generations, one after another.
  struct Pair {
    uint32_t rail = 0;
    uint32_t number = 1;
    Stage stage = Stage::kMade;
    bool peer_over = false;
    Backoff backoff{};
    TimePoint give_up = TimePoint::max();  ///< kProbing, responder: so long it waits in silence.
    std::unique_ptr<Queue> waiting{};      ///< kOffered: made, not connected.
  };

  QueuePairs(LinkState& link, Rails& rails) : link_(link), rails_(rails) {}

  /// Makes the lanes and begins what was agreed on: the probes are out, or awaited.
  Status Begin(std::vector<Rails::Agreed> agreed, Control::Host& host);
  /// The link is ready: opens the lanes. At the responder all have been probed that could be.
  void OpenLanes();
  /// Ends what was found broken: queue pairs are destroyed here, never inside a completion. False: nothing
  /// was.
  bool EndBroken();
  /// Ends those that are silent still: what works must not end with them. They are made again later.
  void EndSilent();
  /// Ours is destroyed, and the peer is told over what is left.
  void EndQueue(uint32_t queue, const Status& reason);
  /// Destroys all, of a link that is down.
  void Destroy(const Status& reason);
  /// Destroys the lanes' ones, of a link that is closed.
  void Close();
  void Step(TimePoint now);
  [[nodiscard]] TimePoint NextStep() const;
  void OnNicChanged(const Nic& nic);

  // --- The peer's messages
  void On(const QueueOver& message);
  void On(const QueueOffer& message);
  void On(const QueueAnswer& message);

  /// By number.
  [[nodiscard]] const std::vector<Pair>& all() const { return pairs_; }
  /// A lane and a control queue pair are up.
  [[nodiscard]] bool Works() const;
  /// Why one broke, for a person.
  [[nodiscard]] const std::string& last_reason() const { return last_reason_; }

  void OnQueueProbed(uint32_t queue, const Probe& probe) override;
  void OnQueueProven(uint32_t queue) override;
  void OnQueueBroken(uint32_t queue, Status reason) override;

 private:
  void BeginQueue(uint32_t queue, std::unique_ptr<Queue> made);
  void OpenQueue(uint32_t queue);
  void DestroyQueue(uint32_t queue, const Status& reason);
  void SettleQueue(uint32_t queue);
  void OfferNext(uint32_t queue);

  LinkState& link_;
  Rails& rails_;
  std::vector<Pair> pairs_;
  /// The queue pair that is being destroyed: not over yet, whatever arrives meanwhile.
  std::optional<uint32_t> destroying_;
  /// Found broken, not ended yet.
  struct Broken {
    uint32_t queue = 0;
    uint32_t generation = 0;
    Status reason;
  };
  std::vector<Broken> broken_;
  std::string last_reason_;
};

}  // namespace weightcast::transport::verbs
