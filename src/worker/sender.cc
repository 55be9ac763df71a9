#include "worker/sender.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "base/thread.h"
#include "worker/device_memory.h"
#include "worker/send_job.h"
#include "worker/stage_item.h"

namespace weightcast::worker {
namespace {

/// Transfers under way to one destination: enough to hide the making of the next ones.
constexpr size_t kInFlight = 4;
/// The same of sources in device memory: a device moves 4 MiB in 3 to 10 us, less than a write takes the
/// processors.
constexpr size_t kInFlightOfDevices = 8;
/// With so many under way to all destinations together, each that wants digests has no more than one.
constexpr size_t kDigestedInFlight = 2;
constexpr unsigned kMaxThreads = 4;

}  // namespace

/// What a thread has taken on.
struct Sender::Pick {
  std::shared_ptr<Job> job;
  uint32_t transfer = 0;
  uint32_t count = 1;  ///< Transfers.
  std::optional<StagingPool::Block> block;
};

Sender::Sender(Endpoint& endpoint, const Settings& settings, Callbacks callbacks)
    : settings_(settings), callbacks_(std::move(callbacks)), staging_(endpoint, settings) {}

Result<std::unique_ptr<Sender>> Sender::Create(Endpoint& endpoint, const Settings& settings,
                                               Callbacks callbacks) {
  std::unique_ptr<Sender> sender(new Sender(endpoint, settings, std::move(callbacks)));
  WC_RETURN_IF_ERROR(sender->StartThreads());
  return sender;
}

Status Sender::StartThreads() {
  WC_ASSIGN_OR_RETURN(threads_.emplace_back(), StartThread("wc-send-end", [this] { WorkOnEnds(); }));
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 2U);
  for (unsigned i = 0; i < std::min(cores / 2, kMaxThreads); ++i) {
    WC_ASSIGN_OR_RETURN(threads_.emplace_back(), StartThread("wc-send", [this] { Work(); }));
  }
  return Status::Ok();
}

Sender::~Sender() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    give_up_ = Clock::now() + 2 * settings_.lease;
    for (const auto& job : jobs_) job->over = job->quiet = true;
  }
  more_.notify_all();
  ends_.notify_all();
  for (auto& thread : threads_)
    if (thread.joinable()) thread.join();
}

Status Sender::CheckStaging(const SendPlan& plan) const {
  if (staging_.capacity() > 0) return Status::Ok();
  for (const auto& route : plan.table.routes) {
    if (!plan.IsStaged(route)) continue;
    const Shard& shard = plan.memory->shards[plan.sources[route.src_shard]];
    return Error(Code::kInvalidArgument, "tensor ", shard.tensor.name,
                 " must be staged (it is cast, quantised, not contiguous or read from a file), which takes ",
                 kMaxTransferBytes, " bytes at a time, but setting staging is ", settings_.staging,
                 "; raise it to at least ", kMaxTransferBytes);
  }
  return Status::Ok();
}

void Sender::Start(std::shared_ptr<const SendPlan> plan, size_t target, const StartOrder& start,
                   std::shared_ptr<const StreamGate> gate) {
  auto job = std::make_shared<Job>();
  job->gate = std::move(gate);
  job->plan = std::move(plan);
  job->target = target;
  job->of_device = AnyOnDevice(job->plan->memory->shards) && job->plan->memory->reader == nullptr;
  job->update = start.update;
  job->part = start.part;
  job->grant = {.slot = start.slot, .id = start.grant};
  job->transfers = job->plan->batches[target].OfPart(start.part);
  job->next = job->transfers.first;
  job->over = job->transfers.count() == 0;
  if (start.compares && !job->over) {
    job->outcome = MakeDigests(*job);
    job->over = !job->outcome.ok();
  }
  const bool over = job->over;
  job->clock.Begin(job->gate != nullptr ? Job::Kind::kGate : Job::Kind::kTurn);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  more_.notify_all();
  if (over) ends_.notify_all();
}

/// Engines with equal layouts get equal bytes, which are digested once for all of them.
Status Sender::MakeDigests(Job& job) {
  const auto& batches = job.plan->batches;
  std::vector<std::shared_ptr<Job>> others;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& other : jobs_) {
      const bool same = other->plan == job.plan && other->update == job.update && other->part == job.part;
      if (same && other->digests != nullptr) others.push_back(other);
    }
  }
  std::set<const PairDigests*> seen;
  for (const auto& other : others) {
    if (!seen.insert(other->digests.get()).second) continue;
    if (!PairDigests::Equal(job.plan->table, batches[other->target], other->transfers, batches[job.target],
                            job.transfers))
      continue;
    job.digests = other->digests;
    return Status::Ok();
  }
  WC_ASSIGN_OR_RETURN(job.digests, PairDigests::Make(job.plan->table, batches[job.target], job.transfers));
  return Status::Ok();
}

void Sender::Look() {
  const std::lock_guard lock(mutex_);
  more_.notify_all();
}

void Sender::Stop(const protocol::UpdateId& update, uint32_t destination) {
  const std::lock_guard lock(mutex_);
  for (const auto& job : jobs_)
    if (job->update == update && job->to().destination == destination) job->over = job->quiet = true;
  ends_.notify_all();
}

// --- Sending ------------------------------------------------------------------------------------------

void Sender::Work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    auto pick = TakeNext();
    if (!pick) {
      more_.wait(lock);
      continue;
    }
    lock.unlock();
    Send(std::move(*pick));
    lock.lock();
  }
}

/// The next transfer of the next destination that can take one. Under the mutex.
std::optional<Sender::Pick> Sender::TakeNext() {
  size_t running = 0;
  for (const auto& job : jobs_) running += job->running;
  // Where they are digested, few: what was just read should still be in the processor's cache when it is
  // sent. What a device digests is in none.
  const size_t digested_in_flight = running < kDigestedInFlight ? kInFlight : 1;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const size_t index = (turn_ + i) % jobs_.size();
    const auto& job = jobs_[index];
    const size_t of_host = job->digests != nullptr ? digested_in_flight : kInFlight;
    const size_t in_flight = job->of_device ? kInFlightOfDevices : of_host;
    if (job->over || job->next == job->transfers.end || job->running >= in_flight) continue;
    if (job->making > 0 && job->checks(job->next)) continue;
    if (job->gate != nullptr && !job->gate->Open()) continue;
    Pick pick{.job = job, .transfer = job->next, .count = job->NextTogether(), .block = std::nullopt};
    if (job->plan->IsStaged(job->target, job->next)) {
      auto block = staging_.TryTake(staging_.Usable(StagingPlaceOf(*job->plan, job->target, job->next)));
      if (!block) continue;  // Another transfer's end will wake us.
      pick.block.emplace(std::move(*block));
    }
    job->next += pick.count;
    ++job->running;
    ++job->making;
    job->TellClock();
    job->flights.try_emplace(pick.transfer);
    turn_ = index + 1;
    return pick;
  }
  return std::nullopt;
}

/// Waits for nothing but the memory of the block, its kernels and the reader.
Status Sender::MakeTransfer(Pick& pick, std::vector<Piece>& pieces) {
  Job& job = *pick.job;
  if (job.gate != nullptr) WC_RETURN_IF_ERROR(job.gate->status());
  StagingSpace space;
  if (pick.block) {
    WC_ASSIGN_OR_RETURN(space, pick.block->Open());
  }
  const trace::Span span(stage_);
  for (uint32_t i = 0; i < pick.count; ++i)
    WC_RETURN_IF_ERROR(MakePieces(*job.plan, job.target, pick.transfer + i, space, pieces));
  if (job.digests != nullptr) WC_RETURN_IF_ERROR(job.Digest(pick.transfer, space));
  // Before the last bytes go: without them no receiver is complete.
  return job.checks(pick.transfer) ? job.plan->memory->reader->Check() : Status::Ok();
}

void Sender::Send(Pick pick) {
  const auto& job = pick.job;
  thread_local std::vector<Piece> pieces;
  pieces.clear();
  const Status status = MakeTransfer(pick, pieces);
  {
    const std::lock_guard lock(mutex_);
    --job->making;
    job->TellClock();
    if (job->next + 1 == job->transfers.end) more_.notify_all();
  }
  if (!status.ok()) return EndTransfer(job, pick.transfer, status, Reached::kNothing);
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.local.length();
  {
    const std::lock_guard lock(mutex_);
    job->flights[pick.transfer].block = std::move(pick.block);
    job->bytes += bytes;
    job->pieces += pieces.size();
  }
  TransferOptions options;
  options.grant = job->grant;
  options.signal = pick.transfer - job->transfers.first;
  options.signals = pick.count;
  options.checksum = settings_.checksum != 0;
  options.deadline = In(settings_.timeout);
  options.on_end = [this, job, transfer = pick.transfer, bytes](const Status& outcome) {
    if (outcome.ok()) bytes_.Add(bytes);
    EndTransfer(job, transfer, outcome, Reached::kFlight);
  };
  Connection connection = job->to().connection;
  auto transfer = connection.Write(pieces, std::move(options));
  if (!transfer.ok()) return EndTransfer(job, pick.transfer, transfer.status(), Reached::kConnection);
  const std::lock_guard lock(mutex_);
  const auto flight = job->flights.find(pick.transfer);
  if (flight == job->flights.end()) return;  // It has ended well meanwhile.
  flight->second.handle = std::move(*transfer);
  if (job->over) ends_.notify_all();
}

/// Only one that was given to the endpoint may still read its sources.
void Sender::EndTransfer(const std::shared_ptr<Job>& job, uint32_t transfer, const Status& status,
                         Reached reached) {
  const std::lock_guard lock(mutex_);
  --job->running;
  job->TellClock();
  const auto flight = job->flights.find(transfer);
  flight->second.ended = true;
  // Erasing gives the staging block back.
  if (status.ok() || reached != Reached::kFlight || flight->second.fenced) job->flights.erase(flight);
  const bool finished = job->next == job->transfers.end && job->running == 0;
  if (!job->over && (!status.ok() || finished)) {
    job->over = true;
    job->outcome = status;
    job->path = reached != Reached::kNothing;
  }
  if (job->over) ends_.notify_all();
  more_.notify_all();
}

// --- Ends ---------------------------------------------------------------------------------------------

void Sender::WorkOnEnds() {
  std::unique_lock lock(mutex_);
  while (!stopping_ || !jobs_.empty()) {
    bool moved = false;
    for (const auto& job : std::vector(jobs_)) moved = (job->over && EndJob(job, lock)) || moved;
    if (!moved && (!stopping_ || !jobs_.empty())) ends_.wait(lock);
  }
}

/// True if it did anything, or waited for something; unlocks meanwhile.
bool Sender::EndJob(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock) {
  const uint32_t destination = job->to().destination;
  if (!std::exchange(job->quiet, true)) {
    lock.unlock();
    if (job->digests != nullptr && job->outcome.ok())
      callbacks_.on_digests({.update = job->update,
                             .destination = destination,
                             .part = job->part,
                             .digests = job->digests->Sums()});
    callbacks_.on_ended({.update = job->update,
                         .destination = destination,
                         .part = job->part,
                         .status = job->outcome,
                         .path = job->path});
    lock.lock();
    return true;
  }
  if (job->running > 0 || !job->flights.empty()) return WaitForFences(*job, lock);
  std::erase(jobs_, job);
  std::vector<protocol::Span> spans = job->Spans(settings_.chunk);
  lock.unlock();
  callbacks_.on_fenced({job->update, destination, job->part, std::move(spans)});
  lock.lock();
  return true;
}

/// Ends the transfers of a job that is over and waits a little for one to let go of its sources. False when
/// there is nothing to wait for but their own ends.
bool Sender::WaitForFences(Job& job, std::unique_lock<std::mutex>& lock) {
  constexpr auto kPatience = std::chrono::milliseconds(20);  // Other jobs wait too.
  std::vector<std::pair<uint32_t, Transfer>> unfenced;
  for (const auto& [transfer, flight] : job.flights)
    if (flight.handle && !flight.fenced) unfenced.emplace_back(transfer, *flight.handle);
  if (unfenced.empty()) return false;
  lock.unlock();
  std::vector<uint32_t> fenced;
  for (auto& [transfer, handle] : unfenced) handle.Cancel();
  for (auto& [transfer, handle] : unfenced)
    if (handle.fenced() || handle.WaitFenced(Clock::now() + kPatience).ok()) fenced.push_back(transfer);
  lock.lock();
  const bool give_up = stopping_ && Clock::now() > give_up_;
  if (give_up)
    WC_LOG(
        kWarning, "transfers to ", job.to().name,
        " still read the registered tensors when this rank ends; do not free them before this process ends");
  for (const auto& [transfer, handle] : unfenced) {
    const auto flight = job.flights.find(transfer);
    if (flight == job.flights.end()) continue;
    const bool let_go = give_up || std::find(fenced.begin(), fenced.end(), transfer) != fenced.end();
    flight->second.fenced = flight->second.fenced || let_go;
    if (flight->second.fenced && flight->second.ended) job.flights.erase(flight);
  }
  return true;
}

}  // namespace weightcast::worker
