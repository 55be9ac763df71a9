#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/shm/channel.h"
#include "transport/shm/context.h"
#include "transport/shm/source_messages.h"
#include "transport/shm/source_trials.h"

namespace weightcast::transport::shm {

/// The device regions of this side that devices of the peer read, on one link: offers them once the way to
/// that device was tried, hears whether it can read them, and has them dropped before their memory goes.
/// Exporting is left to wc-device. The holder of progress alone.
class SourceOffers {
 public:
  enum class State : uint8_t {
    kAsked,   ///< Offered; the verdict is awaited.
    kReads,   ///< The peer's device reads it.
    kCannot,  ///< Its bytes take another path.
  };

  SourceOffers(Context& context, Channel& channel)
      : context_(&context), channel_(&channel), trials_(context) {}

  /// The peer is a transport of this process: it needs no handles.
  void SetSameProcess(bool same) { same_process_ = same; }
  /// Whether the peer's device `reader` reads `region`, a device region. Asked first, it is offered.
  State Ask(const LocalRegion& region, const DeviceUuid& reader);
  Status OnWant(const WantSource& request);
  Status OnVerdict(const SourceVerdict& verdict);
  Status OnDropped(const Dropped& dropped);
  /// Has region `id` unmapped, in all its generations.
  void Drop(uint32_t id);
  /// Sends what is due. True if anything was sent.
  Result<bool> Step();
  /// The peer process has ended.
  void Clear();

  /// Whether the peer may have region `id` mapped.
  [[nodiscard]] bool Holds(uint32_t id) const;
  [[nodiscard]] bool empty() const;
  /// Ids of regions that the peer may have mapped.
  [[nodiscard]] std::set<uint32_t> held() const;
  /// The cells among them, for whoever goes on waiting for the peer.
  TrialCells TakeCells() { return trials_.TakeCells(); }
  /// Why the sources of a device cannot be trusted any more: its context is lost. Ok while it works.
  [[nodiscard]] Status failure() const;

 private:
  using Key = std::pair<RegionId, DeviceUuid>;
  static constexpr size_t kMostWants = 1U << 16;
  /// A message, or several, that waits for its turn.
  struct Order {
    RegionId region;
    DeviceUuid reader{};
    std::shared_ptr<const DeviceRegion> device;  ///< Null: a drop, or a refusal.
    Code refusal = Code::kUnavailable;
    bool drop = false;
    bool announced = false;
    size_t sent = 0;  ///< Blocks.
  };
  using Exported = Result<std::vector<device::Handle>>;

  [[nodiscard]] std::string_view WhyNot(const DeviceRegion& region) const;
  void StepTrials();
  void AnswerWant(const Key& key);
  void OrderOffer(RegionId region, const DeviceUuid& reader, std::shared_ptr<const DeviceRegion> device,
                  Code refusal = Code::kUnavailable);
  [[nodiscard]] size_t BlocksOf(const Order& order) const;
  void ExportNext(const Order& order);
  void OnExported(std::shared_ptr<Exported> exported);
  Status Announce(Order& order);
  Status SendHandles(const Order& order);
  Status SendFront();

  Context* context_;
  Channel* channel_;
  bool same_process_ = false;
  SourceTrials trials_;
  std::map<Key, State> states_;
  std::set<Key> wants_;  ///< Requests that wait for a trial.
  std::deque<Order> orders_;
  bool exporting_ = false;
  std::shared_ptr<Exported> exported_;  ///< The front's next handles, yet to be sent.
  std::vector<std::shared_ptr<device::Health>> healths_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< Reports that come later find it gone.
};

}  // namespace weightcast::transport::shm
