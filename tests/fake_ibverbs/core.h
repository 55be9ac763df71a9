#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fake_ibverbs/fabric.h"
#include "fake_ibverbs/objects.h"

namespace weightcast::fake {

/// What all hosts of one network share: the lock, the time, who is busy. Everything but the constructor, the
/// destructor and `mutex` wants the lock held.
class Core {
 public:
  explicit Core(const Config& config);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  ~Core();

  std::mutex mutex;
  std::condition_variable acked;  ///< An event was acknowledged.

  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] Duration Now() const;
  uint64_t NextId() { return ++last_id_; }

  // --- Time
  void Pump();
  void Advance(Duration duration);
  void Run();
  /// Something may be due earlier than the background thread knows.
  void Kick();

  // --- Queue pairs by number
  void Add(Qp& qp);
  /// It moves nothing any more and nobody reaches it.
  void Forget(Qp& qp);
  [[nodiscard]] Qp* Find(uint32_t qp_num) const;
  /// It has work now.
  void Activate(Qp& qp);

  // --- Regions by key
  void Add(Mr& mr);
  void Forget(Mr& mr);
  /// The region of this protection domain that holds the range and grants `access`; null: there is none.
  [[nodiscard]] Mr* FindMr(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t length,
                           int access) const;

  // --- Outcomes
  void Push(Cq& cq, const Cqe& cqe, bool solicited);
  /// Into the error state: all that is outstanding is flushed.
  void Break(Qp& qp);
  void Flush(Qp& qp);
  void BreakCq(Cq& cq);
  void PushEvent(ibv_context* context, const ibv_async_event& event);
  void PushQpEvent(Qp& qp, ibv_event_type type);
  void Disarm(Cq& cq);
  void Arm(Cq& cq, bool solicited_only);
  /// Takes its completions out of its queues, or only forgets whose they are.
  void Sweep(Qp& qp, bool keep);
  [[nodiscard]] Duration DrawDelay(const Host& host);

  std::vector<Host*> hosts;
  int hosts_made = 0;
  bool shuffle = false;
  bool holds = false;  ///< Some host is held.
  Duration delay{};
  Duration jitter{};
  Duration ack_delay{};

 private:
  struct Span {
    std::byte* data;
    uint64_t length;
  };
  struct Slot {
    Mr* mr = nullptr;
    uint32_t key = 0;
  };

  // step.cc
  [[nodiscard]] Duration NextAt(Qp& qp) const;
  [[nodiscard]] Duration NextOfAll(bool endless_too) const;
  [[nodiscard]] bool Held(const Qp& qp) const;
  /// True if it did anything.
  bool Step(Qp& qp, Duration now, bool one_message);
  void Complete(Qp& qp, const Send& send);
  bool StepShuffled(Duration now);
  void StepAll(Duration now);
  void Background();

  // deliver.cc
  void Execute(Qp& qp, Duration now);
  [[nodiscard]] Qp* Reach(const Qp& qp) const;
  void Retry(Qp& qp, Send& send, Duration now);
  void RetryNotReady(Qp& qp, Qp& peer, Send& send, Duration now);
  void Finish(Qp& qp, Send& send, ibv_wc_status status, Duration at);
  ibv_wc_status Deliver(Qp& qp, Qp& peer, Send& send, uint64_t limit);
  static bool DeliverableTo(const Qp& peer);
  ibv_wc_status DeliverToReceive(Qp& qp, Qp& peer, const Send& send);
  ibv_wc_status DeliverDirect(Qp& qp, Qp& peer, const Send& send, uint64_t limit);
  void PushReceived(Qp& peer, const Qp& qp, const Send& send, ibv_wc_status status);
  bool Gather(std::vector<Span>& spans, const ibv_sge* sges, int count, const ibv_pd* pd, int access) const;
  void GatherLocal(Qp& qp, uint64_t slot, bool& ok, int access);
  static uint64_t Copy(const std::vector<Span>& from, const std::vector<Span>& to, uint64_t limit);
  void Count(Qp& qp, Qp& peer, const Send& send);

  Config config_;
  std::chrono::steady_clock::time_point start_;
  Duration now_{};
  std::mt19937_64 random_;
  uint64_t last_id_ = 0;
  std::unordered_map<uint32_t, Qp*> qps_;
  std::vector<Qp*> active_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_slots_;
  std::vector<Span> local_;
  std::vector<Span> remote_;
  int armed_ = 0;
  std::condition_variable kicked_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace weightcast::fake
