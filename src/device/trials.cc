#include "device/trials.h"

#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "base/advice.h"
#include "base/random.h"
#include "base/strings.h"

namespace weightcast::device {
namespace {

using drivers::CUdeviceptr;

constexpr size_t kHalf = TrialCell::kHalf;

CUdeviceptr Number(const std::byte* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

/// Word `index` of a pattern: no two words, and no two seeds, are alike (the finaliser of splitmix64).
uint64_t WordOf(uint32_t seed, uint64_t index) {
  uint64_t word = (uint64_t{seed} << 32 | index) + 0x9e3779b97f4a7c15U;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9U;
  word = (word ^ word >> 27) * 0x94d049bb133111ebU;
  return word ^ word >> 31;
}

void WritePattern(std::byte* to, uint32_t seed) {
  for (uint64_t i = 0; i < kHalf / 8; ++i) {
    const uint64_t word = WordOf(seed, i);
    std::memcpy(to + i * 8, &word, sizeof word);
  }
}

Status ComparePattern(const std::byte* bytes, uint32_t seed, std::string_view what) {
  for (uint64_t i = 0; i < kHalf / 8; ++i) {
    const uint64_t word = WordOf(seed, i);
    if (std::memcmp(bytes + i * 8, &word, sizeof word) != 0)
      return Error(Code::kCorrupt, "wrong bytes were ", what, ", from byte ", i * 8, " on");
  }
  return Status::Ok();
}

uint32_t NewSeed() { return static_cast<uint32_t>(RandomId()); }

}  // namespace

/// What wc-device owns. The worker keeps it until its last trial is over.
class Trials::Core final : public Work, public std::enable_shared_from_this<Core> {
 public:
  explicit Core(std::shared_ptr<Worker> worker) : health_(worker->health()), worker_(worker) {}

  /// Something that is copied on the stream. `begin` leaves it there, `end` hears how it went.
  struct Job {
    std::function<Status()> begin;
    std::function<void(const Status&)> end;
    bool begun = false;
    Status status;
  };

  // --- wc-device
  void Add(Job job) { jobs_.push_back(std::move(job)); }
  void Stop() { stopped_ = true; }
  Job FillCell(std::function<void(Result<Cell>)> done);
  Job TryWay(std::shared_ptr<const Mapping> cell, uint32_t seed, std::function<void(const Status&)> done);
  State Step() override;

 private:
  Status Open();
  void Close();
  Status Begin(Job& job);
  [[nodiscard]] bool Running(Job& job);
  Status NewCell(std::unique_ptr<TrialCell>& cell);
  Cell Share(std::unique_ptr<TrialCell> cell, std::shared_ptr<Worker> worker);
  void TakeBack(std::unique_ptr<TrialCell> cell);
  Status Copy(const std::byte* to, const std::byte* from, size_t length);
  Status Wipe(const std::byte* at, size_t length);
  [[nodiscard]] drivers::Cuda& cuda() const { return health_->context().cuda(); }
  [[nodiscard]] std::byte* pinned() const { return static_cast<std::byte*>(pinned_); }

  const std::shared_ptr<Health> health_;
  const std::weak_ptr<Worker> worker_;
  std::deque<Job> jobs_;  ///< The first is under way.
  bool stopped_ = false;
  bool over_ = false;
  std::vector<std::unique_ptr<TrialCell>> free_;

  bool open_ = false;
  drivers::CUstream stream_{};
  drivers::CUevent event_{};
  void* pinned_ = nullptr;           ///< Of a cell's length.
  std::unique_ptr<Buffer> scratch_;  ///< The same.
};

Work::State Trials::Core::Step() {
  if (jobs_.empty()) {
    if (!stopped_) return State::kIdle;
    Close();
    return State::kOver;
  }
  Job& job = jobs_.front();
  if (!job.begun) {
    job.begun = true;
    job.status = Begin(job);
    return State::kMoved;
  }
  if (Running(job)) return State::kWaiting;
  const Job ended = std::move(job);
  jobs_.pop_front();
  ended.end(ended.status);
  return State::kMoved;
}

Status Trials::Core::Begin(Job& job) {
  WC_RETURN_IF_ERROR(Open());
  const Status begun = job.begin();
  // What was left before a call failed is waited for all the same: the next trial uses the same memory.
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, EventRecord, event_, stream_));
  return begun;
}

bool Trials::Core::Running(Job& job) {
  if (!open_) return false;
  if (health_->lost()) {
    if (job.status.ok()) job.status = health_->failure();
    return false;
  }
  const auto result = cuda().EventQuery(event_);
  if (result == drivers::CUDA_ERROR_NOT_READY) return true;
  const Status over = health_->Check(result, "cuEventQuery");
  if (job.status.ok()) job.status = over;
  return false;
}

Status Trials::Core::Open() {
  if (open_) return Status::Ok();
  if (health_->lost()) return health_->failure();
  int least = 0;
  int greatest = 0;
  WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, CtxGetStreamPriorityRange, &least, &greatest));
  if (stream_ == drivers::CUstream{}) {
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, StreamCreateWithPriority, &stream_,
                                       drivers::CU_STREAM_NON_BLOCKING, greatest));
  }
  if (event_ == drivers::CUevent{}) {
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, EventCreate, &event_, drivers::CU_EVENT_DISABLE_TIMING));
  }
  if (pinned_ == nullptr) {
    WC_RETURN_IF_ERROR(WC_CHECK_DRIVER(*health_, MemHostAlloc, &pinned_, TrialCell::kBytes,
                                       drivers::CU_MEMHOSTALLOC_PORTABLE));
  }
  WC_ASSIGN_OR_RETURN(scratch_, Buffer::Allocate(health_->shared_context(), TrialCell::kBytes));
  open_ = true;
  return Status::Ok();
}

/// What a lost context refuses to take back is gone with it.
void Trials::Core::Close() {
  over_ = true;
  free_.clear();
  scratch_.reset();
  if (stream_ != drivers::CUstream{}) cuda().StreamDestroy(stream_);
  if (event_ != drivers::CUevent{}) cuda().EventDestroy(event_);
  if (pinned_ != nullptr) cuda().MemFreeHost(pinned_);
}

Status Trials::Core::Copy(const std::byte* to, const std::byte* from, size_t length) {
  return WC_CHECK_DRIVER(*health_, MemcpyAsync, Number(to), Number(from), length, stream_);
}

Status Trials::Core::Wipe(const std::byte* at, size_t length) {
  return WC_CHECK_DRIVER(*health_, MemsetD8Async, Number(at), 0, length, stream_);
}

Status Trials::Core::NewCell(std::unique_ptr<TrialCell>& cell) {
  if (!free_.empty()) {
    cell = std::move(free_.back());
    free_.pop_back();
  } else {
    cell = std::make_unique<TrialCell>();
    WC_ASSIGN_OR_RETURN(cell->buffer, Buffer::Allocate(health_->shared_context(), TrialCell::kBytes));
    WC_ASSIGN_OR_RETURN(cell->memory, Describe(health_->context(), cell->buffer->memory()));
  }
  cell->seed = NewSeed();
  return Status::Ok();
}

Trials::Core::Job Trials::Core::FillCell(std::function<void(Result<Cell>)> done) {
  auto cell = std::make_shared<std::unique_ptr<TrialCell>>();
  return {.begin = [this, cell]() -> Status {
            WC_RETURN_IF_ERROR(NewCell(*cell));
            WritePattern(pinned(), (*cell)->seed);
            return Copy((*cell)->buffer->address(), pinned(), kHalf);
          },
          .end =
              [this, cell, done = std::move(done)](const Status& status) {
                if (!status.ok()) return done(status);
                auto worker = worker_.lock();
                if (worker == nullptr) return done(ClosedHere("the endpoint"));
                done(Share(std::move(*cell), std::move(worker)));
              },
          .begun = false,
          .status = {}};
}

/// Whoever lets go of it may hold progress: wc-device takes it back.
Trials::Cell Trials::Core::Share(std::unique_ptr<TrialCell> cell, std::shared_ptr<Worker> worker) {
  auto let_go = [self = shared_from_this(), worker = std::move(worker)](TrialCell* raw) {
    worker->Run([self, raw] { self->TakeBack(std::unique_ptr<TrialCell>(raw)); });
  };
  return std::shared_ptr<TrialCell>(cell.release(), std::move(let_go));
}

void Trials::Core::TakeBack(std::unique_ptr<TrialCell> cell) {
  if (!over_) free_.push_back(std::move(cell));
}

Trials::Core::Job Trials::Core::TryWay(std::shared_ptr<const Mapping> cell, uint32_t seed,
                                       std::function<void(const Status&)> done) {
  const uint32_t own_seed = NewSeed();
  return {.begin = [this, cell, own_seed]() -> Status {
            std::byte* const read = scratch_->address();
            std::byte* const written = read + kHalf;
            WritePattern(pinned() + kHalf, own_seed);
            WC_RETURN_IF_ERROR(Wipe(read, kHalf));
            WC_RETURN_IF_ERROR(Copy(read, cell->address, kHalf));
            // The way there. What is read back proves it, once the pattern has proved the way here.
            WC_RETURN_IF_ERROR(Copy(written, pinned() + kHalf, kHalf));
            WC_RETURN_IF_ERROR(Copy(cell->address + kHalf, written, kHalf));
            WC_RETURN_IF_ERROR(Wipe(written, kHalf));
            WC_RETURN_IF_ERROR(Copy(written, cell->address + kHalf, kHalf));
            return Copy(pinned(), read, TrialCell::kBytes);
          },
          .end =
              [this, seed, own_seed, cell, done = std::move(done)](const Status& status) {
                Status found = status;
                if (found.ok()) found = ComparePattern(pinned(), seed, "read");
                if (found.ok()) found = ComparePattern(pinned() + kHalf, own_seed, "written and read back");
                done(found);
              },
          .begun = false,
          .status = {}};
}

Trials::Trials(std::shared_ptr<Worker> worker)
    : worker_(std::move(worker)), core_(std::make_shared<Core>(worker_)) {
  worker_->Add(core_);
}

Trials::~Trials() {
  worker_->Run([core = core_] { core->Stop(); });
}

void Trials::MakeCell(std::function<void(Result<Cell>)> done) {
  worker_->Run(
      [core = core_, done = std::move(done)]() mutable { core->Add(core->FillCell(std::move(done))); });
}

void Trials::Try(std::shared_ptr<const Mapping> cell, uint32_t seed,
                 std::function<void(const Status&)> done) {
  worker_->Run([core = core_, cell = std::move(cell), seed, done = std::move(done)]() mutable {
    core->Add(core->TryWay(std::move(cell), seed, std::move(done)));
  });
}

}  // namespace weightcast::device
