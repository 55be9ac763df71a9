#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/engines.h"
#include "transport/ring.h"
#include "transport/shm/context.h"
#include "transport/shm/gathered_copies.h"
#include "transport/shm/host_pulls.h"
#include "transport/shm/inbox.h"
#include "transport/shm/outbox.h"
#include "transport/shm/peer_life.h"
#include "transport/shm/pull.h"
#include "transport/shm/records.h"
#include "transport/shm/source_maps.h"

namespace weightcast::transport::shm {

struct Staging;

struct PullerParts {
  Context& context;
  OwnInbox& inbox;
  Outbox& outbox;
  device::Engines& engines;
  const SourceMaps& sources;
  PeerLife life;
  Paths& paths;
  Staging& staging;
};

/// The copies that this side's devices and its processor make on the peer's order, told in the order in which
/// they were ordered. Before a batch is begun all is checked against this side's own tables and the peer's
/// words, and those words once more when it is over (docs/gpu.md, "Pull"). The holder of progress alone; no
/// driver call.
class Puller {
 public:
  explicit Puller(const PullerParts& parts);

  /// False: more than the window allows.
  bool Add(const PullRecord& record);
  /// The next record must be a signal.
  [[nodiscard]] bool awaits_signal() { return !pulls_.empty() && pulls_[pulls_.tail() - 1].wants_signal(); }
  void AddSignal(const SignalRecord& record);
  /// Begins what can be begun. True if anything was.
  bool Submit(Budget& budget);
  /// The oldest pull if it is over; nullptr otherwise.
  Pull* Finished();
  /// How a pull went that is over: whether its bytes count. `peer_ended`: as seen after it was over.
  [[nodiscard]] Code Outcome(const Pull& pull, bool peer_ended) const;
  [[nodiscard]] bool PeerEnded() const { return life_.Ended(); }
  void Pop();
  /// Forgets what is under way: the engines' fence stands for it.
  void Clear();
  [[nodiscard]] size_t size() const { return pulls_.size(); }
  [[nodiscard]] bool empty() const { return pulls_.empty(); }

 private:
  static constexpr size_t kMost = 256;  ///< Twice an honest peer's window.
  struct Batch {
    struct Piece {
      uint32_t number = 0;  ///< Of its pull.
      uint64_t length = 0;
    };
    GatheredCopies copies;
    std::array<Piece, kDeviceBatch> pieces;
    size_t count = 0;
    device::Engine* engine = nullptr;
    /// The pull of the newest piece; nullptr: there is none.
    const PullRecord* newest = nullptr;
    void Add(uint32_t number, const Pull& pull, const device::Copy& copy);
  };

  [[nodiscard]] bool BetterWaits();
  bool Gather(Batch& batch);
  bool SubmitBatch(bool& any);
  std::optional<device::Copy> Prepare(uint32_t number, uint64_t most);
  [[nodiscard]] Code Check(const PullRecord& record, const LocalRegion* region, const Source* source) const;
  [[nodiscard]] bool Stands(const PullRecord& record) const;
  bool Overlaps(const std::byte* to, uint64_t length, uint32_t end);

  Context* context_;
  OwnInbox* inbox_;
  Outbox* outbox_;
  device::Engines* engines_;
  const SourceMaps* sources_;
  PeerLife life_;
  HostPulls host_;
  Ring<Pull> pulls_;
  uint32_t next_ = 0;  ///< Number of the first that is not whole.
};

}  // namespace weightcast::transport::shm
