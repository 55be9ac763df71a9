#include "worker/receiver.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "base/advice.h"
#include "base/hash.h"
#include "base/strings.h"
#include "endpoint/transfers/chunks.h"
#include "worker/route_segments.h"

namespace weightcast::worker {

// --- Opening --------------------------------------------------------------------------------------------

GrantSet::GrantSet(std::shared_ptr<const ReceivePlan> plan, uint32_t part, ArrivalChecks checks,
                   std::function<void()> on_complete)
    : plan_(std::move(plan)),
      part_(part),
      checks_(std::move(checks)),
      on_complete_(std::move(on_complete)),
      sources_(plan_->sources.size()),
      // One more, so that nothing completes while grants are still being opened.
      incomplete_(plan_->sources.size() + 1),
      unfenced_(0) {
  for (size_t i = 0; i < sources_.size(); ++i) sources_[i].transfers = plan_->batches[i].OfPart(part);
}

Result<std::shared_ptr<GrantSet>> GrantSet::Open(const Endpoint& endpoint,
                                                 std::shared_ptr<const ReceivePlan> plan, uint32_t part,
                                                 ArrivalChecks checks, std::function<void()> on_complete,
                                                 uint32_t* refused) {
  std::shared_ptr<GrantSet> set(
      new GrantSet(std::move(plan), part, std::move(checks), std::move(on_complete)));
  for (size_t i = 0; i < set->sources_.size(); ++i) {
    const Status status = set->OpenOne(endpoint, i);
    if (status.ok()) continue;
    set->Revoke([] {});  // Nobody was told their names: nothing can come under them.
    const auto& source = set->plan_->sources[i];
    if (refused != nullptr) *refused = source.source;
    return status;
  }
  if (set->incomplete_.fetch_sub(1) == 1) set->on_complete_();
  return set;
}

Status GrantSet::OpenOne(const Endpoint& endpoint, size_t index) {
  const auto& source = plan_->sources[index];
  const TransferRange transfers = sources_[index].transfers;
  if (checks_.compare_on && transfers.count() > 0) {
    WC_ASSIGN_OR_RETURN(sources_[index].digests,
                        PairDigests::Make(plan_->table, plan_->batches[index], transfers));
    sources_[index].missing = 2;
  }
  auto connection = endpoint.Find(source.incarnation);
  if (!connection)
    return Error(Code::kUnavailable, "the connection from ", source.name,
                 " is gone; see its log, and if that ends the update, let trainers publish again");
  GrantOptions options;
  options.transfers = transfers.count();
  options.on_transfer = [self = shared_from_this(), index](uint32_t transfer, const GrantProgress& progress) {
    self->OnTransfer(index, transfer, progress);
  };
  options.chunks = [plan = plan_, index, from = transfers.first, chunk = connection->peer_chunk()](
                       uint32_t first, uint32_t count) {
    return ChunksOf(*plan, index, from + first, count, chunk);
  };
  options.ranges = transfers.count() > 0 ? source.ranges[part_] : std::vector<GrantRange>();
  if (checks_.checksums) {
    options.on_chunk = [self = shared_from_this(), index](uint32_t transfer, uint32_t chunk, uint64_t sum) {
      self->sources_[index].sums.push_back({transfer, chunk, sum});
    };
  }
  WC_ASSIGN_OR_RETURN(sources_[index].grant, connection->OpenGrant(std::move(options)));
  sources_[index].connection = std::move(connection);
  const auto grant = sources_[index].grant;
  names_.push_back({.source = source.source, .slot = grant.slot, .id = grant.id});
  if (transfers.count() == 0) OnSourceArrived(index);
  return Status::Ok();
}

// --- Arriving -------------------------------------------------------------------------------------------

void GrantSet::OnTransfer(size_t index, uint32_t transfer, const GrantProgress& progress) {
  if (sources_[index].digests != nullptr) DigestLater(index, transfer);
  if (progress.complete()) OnSourceArrived(index);
}

void GrantSet::OnSourceArrived(size_t index) {
  if (sources_[index].arrived.exchange(true)) return;
  sources_[index].seconds = seconds();
  OneLess(index);
}

void GrantSet::OnDigests(protocol::SourceDigests digests) {
  const auto at = std::ranges::find(plan_->sources, digests.source, &ReceivePlan::Source::source);
  if (at == plan_->sources.end()) return;
  const auto index = static_cast<size_t>(at - plan_->sources.begin());
  Source& source = sources_[index];
  if (source.digests == nullptr || source.told.exchange(true)) return;
  source.sent = std::move(digests.digests);
  OneLess(index);
}

void GrantSet::OneLess(size_t index) {
  if (sources_[index].missing.fetch_sub(1) != 1) return;
  sources_[index].complete = true;
  if (incomplete_.fetch_sub(1) == 1) on_complete_();
}

/// The endpoint's thread must not be held up.
void GrantSet::DigestLater(size_t index, uint32_t transfer) {
  static const size_t most_threads = std::clamp(std::thread::hardware_concurrency() / 2, 1U, 4U);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    arrivals_.push_back({index, transfer});
    if (digesting_ == most_threads) return;
    ++digesting_;
  }
  checks_.compare_on([self = shared_from_this()] { self->DigestArrivals(); });
}

void GrantSet::DigestArrivals() {
  std::unique_lock lock(mutex_);
  while (!arrivals_.empty()) {
    const Arrival arrival = arrivals_.front();
    arrivals_.pop_front();
    lock.unlock();
    const Status status = DigestOne(arrival);
    lock.lock();
    if (digest_error_.ok()) digest_error_ = status;
  }
  if (--digesting_ > 0) return;
  const auto stopped = std::exchange(stopped_, {});
  lock.unlock();
  if (stopped) stopped();
}

Status GrantSet::DigestOne(const Arrival& arrival) {
  const LandingMemory& memory = *plan_->memory;
  return sources_[arrival.source].digests->Add(arrival.transfer, memory.devices(), [&](const Item& item) {
    const size_t shard = plan_->shards[plan_->table.routes[item.route].dst_shard];
    return ItemBytes{.in = ItemBytes::In::kDestination,
                     .data = memory.LandingOf(shard),
                     .device = DeviceOf(memory.shards()[shard])};
  });
}

/// Of an update that is complete, the arrivals that are left are digested first; of others nothing more is
/// read. False if nothing reads any more; otherwise `then` is called when that is so.
bool GrantSet::StopDigesting(const std::function<void()>& then) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (incomplete_ > 0) arrivals_.clear();
  if (digesting_ == 0) return false;
  stopped_ = then;
  return true;
}

uint64_t GrantSet::bytes() const {
  uint64_t bytes = 0;
  for (const protocol::SourceBytes& source : sources()) bytes += source.bytes;
  return bytes;
}

std::vector<protocol::SourceBytes> GrantSet::sources() const {
  std::vector<protocol::SourceBytes> sources;
  for (size_t i = 0; i < sources_.size(); ++i)
    sources.push_back({.source = plan_->sources[i].source,
                       .bytes = static_cast<uint64_t>(plan_->batches[i].BytesOf(sources_[i].transfers)),
                       .seconds = sources_[i].seconds});
  return sources;
}

const ReceivePlan::Source* GrantSet::Missing(Incarnation incarnation) const {
  for (size_t i = 0; i < sources_.size(); ++i)
    if (plan_->sources[i].incarnation == incarnation && !sources_[i].complete) return &plan_->sources[i];
  return nullptr;
}

// --- Closing --------------------------------------------------------------------------------------------

void GrantSet::Revoke(std::function<void()> fenced) {
  auto done = std::make_shared<std::function<void()>>(std::move(fenced));
  unfenced_ = sources_.size() + 2;
  const auto one_less = [self = shared_from_this(), done] {
    if (self->unfenced_.fetch_sub(1) == 1) (*done)();
  };
  for (size_t i = 0; i < sources_.size(); ++i) {
    const auto fence = [self = shared_from_this(), one_less, i] {
      self->sources_[i].fenced = true;
      one_less();
    };
    if (sources_[i].connection) {
      sources_[i].connection->RevokeGrant(sources_[i].grant, fence);
    } else {
      fence();
    }
  }
  if (!StopDigesting(one_less)) one_less();
  one_less();
}

std::string GrantSet::Writers() const {
  std::string writers;
  for (size_t i = 0; i < sources_.size(); ++i)
    if (sources_[i].connection && !sources_[i].fenced)
      writers += StrCat(writers.empty() ? "" : ", ", plan_->sources[i].name, " (",
                        sources_[i].connection->Describe(), ")");
  return writers;
}

// --- Verifying ------------------------------------------------------------------------------------------

Status GrantSet::Verify() const {
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (checks_.checksums) WC_RETURN_IF_ERROR(VerifyChecksums(i));
    if (sources_[i].digests != nullptr) WC_RETURN_IF_ERROR(VerifyDigests(i));
  }
  return Status::Ok();
}

uint64_t GrantSet::compared() const {
  std::set<int> tensors;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].digests == nullptr) continue;
    for (const Item& item : plan_->batches[i].Of(sources_[i].transfers))
      tensors.insert(plan_->table.destination_shards[plan_->table.routes[item.route].dst_shard].tensor);
  }
  return tensors.size();
}

namespace {

/// Behind what differs from what its source had.
constexpr std::string_view kFindTheChange =
    "; change no tensor before wait_sources returns, and check memory and, between hosts, NICs and cables";

}  // namespace

Status GrantSet::VerifyDigests(size_t index) const {
  const Source& source = sources_[index];
  {
    const std::lock_guard lock(mutex_);
    WC_RETURN_IF_ERROR(digest_error_);
  }
  const std::string& name = plan_->sources[index].name;
  if (source.sent.size() != source.digests->size())
    return Error(Code::kProtocol, name, " sent ", source.sent.size(), " digests for ", source.digests->size(),
                 " tensors", kSameRelease);
  const std::vector<std::string> wrong = source.digests->Differing(source.sent);
  if (wrong.empty()) return Status::Ok();
  return Error(Code::kCorrupt, "tensor ", wrong.front(),
               wrong.size() > 1 ? StrCat(" and ", wrong.size() - 1, " more") : std::string(),
               " at this rank is not what ", name, " had when it sent it (digests differ, ", wrong.size(),
               " of ", source.sent.size(), " tensors)", kFindTheChange);
}

Status GrantSet::VerifyChecksums(size_t index) const {
  const Source& source = sources_[index];
  const std::string& name = plan_->sources[index].name;
  std::vector<std::vector<uint64_t>> sums(source.transfers.count());
  for (const ChunkSum& sum : source.sums) {
    if (sum.checksum == 0)
      return Error(Code::kProtocol, name,
                   " sent no checksums; set checksum to 1 there too (for GPU memory there are "
                   "none: on both sides set checksum to 0 and compare to 1)");
    auto& of_transfer = sums[sum.transfer];
    if (of_transfer.size() <= sum.chunk) of_transfer.resize(sum.chunk + 1, 0);
    of_transfer[sum.chunk] = sum.checksum;
  }
  for (uint32_t i = 0; i < sums.size(); ++i)
    WC_RETURN_IF_ERROR(VerifyTransfer(index, source.transfers.first + i, std::move(sums[i])));
  return Status::Ok();
}

Status GrantSet::VerifyTransfer(size_t index, uint32_t transfer, std::vector<uint64_t> sums) const {
  // The pieces as the source has cut them; `local_offset` counts from `bases`.
  std::vector<PlacedPiece> pieces;
  std::vector<const std::byte*> bases;
  for (const Item& item : plan_->batches[index].Of(transfer)) {
    const auto& route = plan_->table.routes[item.route];
    WC_ASSIGN_OR_RETURN(const RouteSegments segments, SegmentsOf(plan_->table, route));
    const std::byte* base = plan_->memory->LandingOf(plan_->shards[route.dst_shard]);
    ForEachSegment(segments, item, [&](const ItemSegment& segment) {
      pieces.push_back({.local_offset = static_cast<uint64_t>(segment.dst_offset),
                        .length = static_cast<uint64_t>(segment.dst_bytes)});
      bases.push_back(base);
    });
  }
  const uint64_t chunk_bytes = sources_[index].connection->peer_chunk();
  const std::string& name = plan_->sources[index].name;
  if (CountChunks(pieces, chunk_bytes) != sums.size())
    return Error(Code::kProtocol, name, " cut transfer ", transfer, " into ", sums.size(), " chunks, not ",
                 CountChunks(pieces, chunk_bytes), kSameRelease);
  ChunkCursor cursor;
  for (uint32_t chunk = 0; chunk < sums.size(); ++chunk) {
    ChunkWalk walk(pieces, chunk_bytes, cursor);
    Hasher64 hasher;
    while (const auto part = walk.Next())
      hasher.Add({bases[part->piece] + pieces[part->piece].local_offset + part->offset, part->length});
    // 0 stands for "not computed" on the wire.
    const uint64_t sum = std::max<uint64_t>(hasher.Finish(), 1);
    if (sum != sums[chunk])
      return Error(Code::kCorrupt, "bytes from ", name, " arrived changed (chunk ", chunk, " of transfer ",
                   transfer, ", wrong checksum)", kFindTheChange);
    cursor = walk.cursor();
  }
  return Status::Ok();
}

}  // namespace weightcast::worker
