#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "protocol/messages.h"
#include "weightcast/clock.h"
#include "weightcast/endpoint.h"
#include "weightcast/status.h"
#include "worker/comparison.h"
#include "worker/receive_plan.h"

namespace weightcast::worker {

/// How a rank makes sure of what has arrived.
struct ArrivalChecks {
  bool checksums = false;  ///< Of each chunk, on its way.
  /// Runs a task on another thread. Set: what has arrived is compared by digest with what the sources have.
  std::function<void(const std::function<void()>&)> compare_on{};
};

/// The open grants of one part of an update and what has arrived under them. When digests are compared, each
/// transfer is digested as it arrives, and a source is complete only when it has told its digests, too.
class GrantSet : public std::enable_shared_from_this<GrantSet> {
 public:
  /// Opens one for each source. `on_complete` is called once, from the endpoint's thread or this one, when
  /// every transfer of every source has arrived. Errors: kUnavailable, naming a source without a connection;
  /// OpenGrant's. None is open then, and `refused` (when it is not null) is set to the source in question.
  static Result<std::shared_ptr<GrantSet>> Open(const Endpoint& endpoint,
                                                std::shared_ptr<const ReceivePlan> plan, uint32_t part,
                                                ArrivalChecks checks, std::function<void()> on_complete,
                                                uint32_t* refused = nullptr);

  [[nodiscard]] const std::vector<protocol::SourceGrant>& grants() const { return names_; }
  /// Bytes of the whole part.
  [[nodiscard]] uint64_t bytes() const;
  /// Since they were opened.
  [[nodiscard]] double seconds() const { return Seconds(Clock::now() - opened_); }
  /// Of each source, once all have sent everything.
  [[nodiscard]] std::vector<protocol::SourceBytes> sources() const;
  /// The source of this incarnation that has not sent everything; null if there is none.
  [[nodiscard]] const ReceivePlan::Source* Missing(Incarnation incarnation) const;
  /// What a source has told of its bytes.
  void OnDigests(protocol::SourceDigests digests);
  /// `fenced` is called once, from another thread or this one, when nothing can land and nothing here reads
  /// any more. Once.
  void Revoke(std::function<void()> fenced);
  /// Who may still write after Revoke, and by what: "trainer 0 (shm: ..., pid 77, ...), ...". Any thread.
  [[nodiscard]] std::string Writers() const;
  /// Compares the checksums of all chunks with the bytes that are there, and the digests of both sides; after
  /// `fenced`. Takes long. Errors: kCorrupt, naming tensor and trainer; kProtocol for a trainer that sent no
  /// checksums, or other digests than its table says.
  [[nodiscard]] Status Verify() const;
  /// Tensors whose digests Verify compares, in all.
  [[nodiscard]] uint64_t compared() const;

 private:
  struct ChunkSum {
    uint32_t transfer = 0;
    uint32_t chunk = 0;
    uint64_t checksum = 0;
  };
  struct Source {
    std::optional<Connection> connection;
    GrantName grant;
    std::atomic<bool> complete{false};
    std::atomic<double> seconds{0};  ///< When it was complete.
    std::atomic<bool> fenced{false};
    std::vector<ChunkSum> sums;            ///< The endpoint's thread, until fenced.
    TransferRange transfers;               ///< Of the part.
    std::atomic<bool> arrived{false};      ///< Every transfer.
    std::atomic<bool> told{false};         ///< Its digests.
    std::atomic<int> missing{1};           ///< Of these two, where both are wanted.
    std::unique_ptr<PairDigests> digests;  ///< Of what has arrived; set where they are compared.
    std::vector<TensorDigest> sent;        ///< What the source has told; until it is complete.
  };
  /// A transfer that waits to be digested.
  struct Arrival {
    size_t source = 0;
    uint32_t transfer = 0;
  };
  GrantSet(std::shared_ptr<const ReceivePlan> plan, uint32_t part, ArrivalChecks checks,
           std::function<void()> on_complete);
  Status OpenOne(const Endpoint& endpoint, size_t index);
  void OnTransfer(size_t index, uint32_t transfer, const GrantProgress& progress);
  void OnSourceArrived(size_t index);
  void OneLess(size_t index);
  void DigestLater(size_t index, uint32_t transfer);
  void DigestArrivals();
  Status DigestOne(const Arrival& arrival);
  bool StopDigesting(const std::function<void()>& then);
  [[nodiscard]] Status VerifyChecksums(size_t index) const;
  [[nodiscard]] Status VerifyDigests(size_t index) const;
  [[nodiscard]] Status VerifyTransfer(size_t index, uint32_t transfer, std::vector<uint64_t> sums) const;

  const std::shared_ptr<const ReceivePlan> plan_;
  const uint32_t part_;
  const ArrivalChecks checks_;
  const std::function<void()> on_complete_;
  const TimePoint opened_ = Clock::now();
  std::vector<Source> sources_;  ///< As plan_->sources.
  std::vector<protocol::SourceGrant> names_;
  std::atomic<size_t> incomplete_;
  std::atomic<size_t> unfenced_;

  mutable std::mutex mutex_;  ///< Of the rest.
  std::deque<Arrival> arrivals_;
  size_t digesting_ = 0;           ///< Threads.
  bool closed_ = false;            ///< Takes no more arrivals.
  std::function<void()> stopped_;  ///< Called when the last of these threads has nothing left to do.
  Status digest_error_;
};

}  // namespace weightcast::worker
