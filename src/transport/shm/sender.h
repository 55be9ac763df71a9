#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/ring.h"
#include "transport/shm/context.h"
#include "transport/shm/cross_copy.h"
#include "transport/shm/engines.h"
#include "transport/shm/gathered_copies.h"
#include "transport/shm/outbox.h"
#include "transport/shm/peer_life.h"
#include "transport/shm/records.h"
#include "transport/shm/source_maps.h"
#include "transport/shm/source_offers.h"
#include "transport/shm/staging.h"
#include "transport/types.h"

namespace weightcast::transport::shm {

/// Which paths a link has besides mapped memory, as found by trial.
struct Paths {
  CrossCopy copy;
  bool copy_writes = false;
  bool copy_reads = false;
  std::string refusal;  ///< Why a copy is not possible; empty where it is.
  bool ring_wanted = false;
  bool ring_ready = false;
  Code ring_failure = Code::kOk;
};

/// What a sender needs for device memory.
struct SenderDevices {
  Engines& engines;
  SourceOffers& offers;
  SourceMaps& sources;
  PeerLife life;
  Staging& staging;
};

/// The operations that this side has posted on one link: takes them, moves their bytes, completes them.
/// They run in the order of posting. Of host memory there are three paths: mapped memory, cross-process copy,
/// and the ring, where the peer does the second half of the copying and answers. Of device memory there are
/// four: writes under a grant are orders to the peer, whose device pulls; writes to open memory and reads
/// are copies by this side's device; what none of these can is staged. Before the path changes, what is under
/// way is waited for.
class Sender {
 public:
  Sender(LinkId link, Context& context, Outbox& outbox, Paths& paths, const SenderDevices& devices);

  /// Takes from the front of `ops`; how many.
  size_t Take(std::span<const Op> ops);
  /// Moves bytes while the budget lasts and nothing is in the way. True if anything was done.
  bool Run(Budget& budget);
  /// Answers of the peer; kProtocol when they make no sense.
  Status OnAnswer(const AnswerRecord& record);
  Status OnData(const DataRecord& record, const std::byte* bytes);
  Status OnStagedData(const DataRecord& record);
  /// A piece of the oldest read is in place, or not: `code`.
  void OnStagedPlaced(uint8_t flags, Code code);
  /// Completes all that was taken; reads of device memory once their copies are over, by Settle.
  void Fail(Code code);
  /// After Fail: completes what could not be completed then. True if there was anything.
  bool Settle();
  /// Tells the peer which of this side's copies into its memory are over. In every state of the link.
  void EndPushes();

  [[nodiscard]] bool idle() const { return head_ == tail_; }
  /// The next operation waits for a device's event, of which no descriptor tells.
  [[nodiscard]] bool waits_for_device() const { return waits_for_device_; }

 private:
  static constexpr uint64_t kQueue = 256;       ///< Operations taken and not completed.
  static constexpr uint64_t kRingWindow = 128;  ///< Of these, on the ring.
  static constexpr uint64_t kGetWindow = 32;    ///< The same of reads.
  static constexpr size_t kMostPushes = 64;     ///< Batches: of eight devices.
  static constexpr uint64_t kRingPiece = 128 * 1024;
  static constexpr size_t kBatch = 64;  ///< Pieces of one cross-process copy.

  enum class Step : uint8_t { kDone, kStalled, kSpent };
  enum class Path : uint8_t { kMapped, kCopy, kRing, kPull, kReach, kPush, kStaged };
  struct Pending {
    Op op;
    uint64_t done = 0;      ///< Bytes moved; on the ring: bytes sent, or received.
    uint64_t sequence = 0;  ///< On the ring.
    uint32_t scope = 0;
    Path path = Path::kMapped;       ///< Of what waits for an answer or a copy.
    uint32_t records = 0;            ///< Of a pull.
    const Engine* engine = nullptr;  ///< That reads or pushes; null: nothing was submitted.
    uint64_t ticket = 0;             ///< Of its last batch.
    uint64_t gathered = 0;           ///< Bytes in the batch that is gathered.
    bool checked = false;
    bool device = false;  ///< Device memory at one end at least.
    bool scoped = false;
    bool moved = false;     ///< Only the signal is left.
    Code code = Code::kOk;  ///< Known to fail, though not yet completed.
  };
  /// The writes that one signal stands for: those under its grant since the signal before. If one of them
  /// failed, the signal must not be set.
  struct Scope {
    uint64_t grant = 0;
    uint32_t number = 0;
    bool open = false;
    bool on_ring = false;  ///< The peer has seen a put of it.
    Code failure = Code::kOk;
  };

  /// What own copies of an operation go between; `source` is `region` as this side's device has it mapped.
  struct OwnEnds {
    const LocalRegion* local = nullptr;
    const PeerRegion* region = nullptr;
    const Source* source = nullptr;
  };
  /// The bytes that an own copy writes.
  struct Span {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
  };

  Pending& At(uint64_t index) { return queue_[index % kQueue]; }
  [[nodiscard]] Code Check(Pending& pending) const;
  /// Checks once; false while a device's event or the region's import is awaited.
  bool Begin(Pending& pending);
  void EnterScope(Pending& pending);
  Step StepFront(Budget& budget);
  Step StepPath(Pending& pending, Budget& budget);
  Step StepRing(Pending& pending, const PeerRegion& region, Budget& budget);
  [[nodiscard]] Path PathOf(const Op& op, const PeerRegion& region) const;
  Step StepDevice(Pending& pending, const PeerRegion& region, Budget& budget);
  Step Pull(Pending& pending, const PeerRegion& region, const LocalRegion& local);
  [[nodiscard]] static std::optional<Path> OwnPath(const Op& op, const PeerRegion& region,
                                                   const LocalRegion& local);
  Step CopyOwn(Pending& front, Path path, const OwnEnds& ends);
  uint64_t GatherOwn(GatheredCopies& batch, const Engine& engine, Path path, OwnEnds ends);
  std::optional<OwnEnds> JoinOwn(uint64_t index, Path path, const Engine& engine);
  void TakeOwn(uint64_t end, const Engine& engine, uint64_t ticket, Path path);
  [[nodiscard]] bool FillsBatch();
  [[nodiscard]] static bool Inside(const Op& op, const OwnEnds& ends);
  [[nodiscard]] static Span SpanOf(const Op& op, const OwnEnds& ends);
  [[nodiscard]] bool Overlaps(uint64_t end, const Span& span);
  Step Stage(Pending& pending, const PeerRegion& region, const LocalRegion& local, Budget& budget);
  Step StageWrite(Pending& pending, const PeerRegion& region, const LocalRegion& local, Budget& budget);
  Step StageRead(Pending& pending, const PeerRegion& region);
  [[nodiscard]] bool Awaits(const DataRecord& record);
  Step GiveUp(Pending& pending, Code code);
  /// Completes reads and pushes whose copies are over. True if there was one.
  bool FinishOwn();
  [[nodiscard]] Code ReadOutcome(const Pending& pending) const;
  Step FinishPush(Pending& pending);
  /// Whether an operation may go on `path` beside those that are under way.
  [[nodiscard]] bool Joins(Path path) { return head_ == next_ || At(next_ - 1).path == path; }
  /// The flags of the next piece of a write that the peer puts in place; EndPiece follows its record.
  uint8_t BeginPiece(Pending& pending, uint64_t size);
  Step EndPiece(Pending& pending, uint64_t size, uint8_t flags);
  /// What the peer's words say now; call between Enter and Leave.
  [[nodiscard]] Code Admitted(const Op& op, const PeerRegion& region) const;

  /// Where a piece of the local side lies; nullptr when its region has gone.
  std::byte* LocalAt(const Pending& pending, uint64_t size);

  Step Touch(Pending& pending, const PeerRegion& region);
  Step Move(Pending& pending, PeerRegion& region, Budget& budget);
  Step CopyBatch(Budget& budget);
  size_t Gather(uint64_t most_bytes, std::span<iovec> local, std::span<iovec> remote);
  Step OnCopied(std::span<const iovec> local, uint64_t copied);
  Step OnCopyError(int error);
  Step Put(Pending& pending, const PeerRegion& region, Budget& budget);
  Step Get(Pending& pending, const PeerRegion& region);
  void Abandon(Pending& pending);
  Step Conclude(Pending& pending);

  /// Completes the operation at `head_`, which is also the front unless the ring has it.
  void Complete(Code code);
  Step Refuse(Pending& pending, Code code);
  void NoteFailure(const Pending& pending, Code code);

  LinkId link_;
  Context* context_;
  Outbox* outbox_;
  Paths* paths_;
  SenderDevices devices_;
  std::vector<Pending> queue_;
  uint64_t head_ = 0;  ///< Oldest not completed.
  uint64_t next_ = 0;  ///< Next to run; what lies before it waits for the peer's answer.
  uint64_t tail_ = 0;
  uint64_t next_sequence_ = 1;
  uint64_t arriving_ = 0;  ///< The staged read whose bytes come next, unless it lies before `head_`.
  bool waits_for_device_ = false;
  uint32_t pulls_ = 0;  ///< Records without an answer.
  struct PushedBatch {
    const Engine* engine = nullptr;
    uint64_t ticket = 0;
  };
  std::array<Span, kQueue> spans_;  ///< Of own copies, by number: all that are under way are looked through.
  Ring<PushedBatch> pushes_{kMostPushes};  ///< Batches of which the peer has not heard that they are over.
  Code failed_ = Code::kOk;                ///< Everything completes so.
  std::array<Scope, kGrantSlots> scopes_;
};

}  // namespace weightcast::transport::shm
