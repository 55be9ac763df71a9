#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "device/engines.h"
#include "device/mapping.h"
#include "transport/shm/channel.h"
#include "transport/shm/context.h"
#include "transport/shm/source_messages.h"

namespace weightcast::transport::shm {

/// A region of the peer's at an address that a device of this side reads and, where it is open, writes.
struct Source {
  enum class State : uint8_t { kMapping, kReady, kFailed };
  State state = State::kMapping;
  Code failure = Code::kUnavailable;               ///< kFailed: why.
  std::shared_ptr<const device::Mapping> mapping;  ///< Of its allocation.
  uint64_t offset = 0;                             ///< Of the region in it.
  uint64_t length = 0;                             ///< Of the region.
  DeviceUuid owner{};                              ///< The device that it lies in.
  device::Device device;                           ///< The reader; no worker before the offer.
  bool dropped = false;                            ///< To be unmapped, and not to be read any more.
  bool busy = false;                               ///< wc-device is mapping it.
  bool unmapping = false;
  std::optional<device::EngineFence> fence;  ///< Copies that may still use it.
  [[nodiscard]] std::byte* At(uint64_t at) const { return mapping->address + offset + at; }
  /// Of copies between it and memory of `reader`.
  [[nodiscard]] device::Ends EndsWith(const DeviceUuid& reader) const {
    return owner == reader ? device::Ends::kOneDevice : device::Ends::kDevices;
  }
};

/// The peer's device regions that devices of this side read, on one link, and trials of the ways to them.
/// Mapping and unmapping are left to wc-device. The holder of progress alone.
class SourceMaps {
 public:
  SourceMaps(Context& context, Channel& channel, const device::Engines& engines)
      : context_(&context), channel_(&channel), engines_(&engines) {}

  /// nullptr: not offered, or dropped.
  [[nodiscard]] const Source* Find(const RegionId& region, const DeviceUuid& reader) const;
  /// The same; where it was not offered, asks for it.
  const Source* FindOrAsk(const RegionId& region, const DeviceUuid& reader);

  Status OnOffer(const SourceOffer& offer);
  Status OnHandles(const SourceHandles& message, std::vector<UniqueFd> fds);
  Status OnDrop(const Drop& drop);
  /// Unmaps everything once the copies under way are over, and maps nothing more.
  void Close();
  /// Goes on with what was dropped. True if there was anything.
  bool Step();
  /// Nothing is mapped, and nothing is about to be.
  [[nodiscard]] bool empty() const { return sources_.empty() && jobs_ == 0; }

 private:
  using Key = std::pair<RegionId, DeviceUuid>;
  struct Job;
  static constexpr size_t kMost = 1U << 16;  ///< Sources at once: a peer's offers must not grow without end.
  static constexpr size_t kMostWays = 1024;

  void Begin(const SourceOffer& offer, device::Device device);
  void Finish();
  void OnFinished(const Key& key, Result<std::shared_ptr<const device::Mapping>> mapping);
  void Abandon();
  bool Unmap(const Key& key, Source& source);
  void Report(const Key& key, bool reads);
  [[nodiscard]] Status CheckOffer(const SourceOffer& offer) const;
  void Try(const Key& key, Source& cell);
  void OnTried(const Key& key, const Status& outcome);
  /// Has the cell unmapped, and then tells the verdict.
  void EndTrial(const Key& key, Source& cell, bool works);

  Context* context_;
  Channel* channel_;
  const device::Engines* engines_;
  std::map<Key, Source> sources_;
  std::shared_ptr<Job> job_;  ///< Of the offer whose handles are awaited.
  const Source gone_{.state = Source::State::kFailed,
                     .failure = Code::kPermission,
                     .mapping = nullptr,
                     .device = {},
                     .fence = {}};  ///< What was dropped, to those who ask.
  size_t jobs_ = 0;                 ///< Left with wc-device.
  std::vector<RegionId> drops_;     ///< To be told as soon as nothing of them is mapped.
  std::map<std::pair<DeviceUuid, DeviceUuid>, bool> ways_;  ///< Owner and reader: whether the way works.
  std::vector<std::pair<Key, bool>> verdicts_;              ///< Of cells: the same as with `drops_`.
  bool closed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace weightcast::transport::shm
