#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/trials.h"
#include "transport/shm/context.h"
#include "transport/shm/source_messages.h"

namespace weightcast::transport::shm {

/// Cells that a peer may have mapped. Memory that is mapped elsewhere must not be freed: what is not given
/// back when the transport ends stays until the process ends.
class TrialCells {
 public:
  TrialCells() = default;
  TrialCells(TrialCells&&) = default;
  TrialCells& operator=(TrialCells&&) = default;
  ~TrialCells();

  void Hold(device::Trials::Cell cell) { cells_.push_back(std::move(cell)); }
  /// The peer has nothing mapped any more.
  void GiveBack() { cells_.clear(); }
  [[nodiscard]] bool empty() const { return cells_.empty(); }

 private:
  std::vector<device::Trials::Cell> cells_;
};

/// Whether devices of the peer can be trusted to read and write the memory of devices here: each pair is
/// tried once on a link, before the first region is offered. One after another, so that a peer costs one
/// cell. The holder of progress alone.
class SourceTrials {
 public:
  enum class Way : uint8_t { kTrying, kWorks, kCannot };

  explicit SourceTrials(Context& context) : context_(&context) {}

  /// Of the way from memory of `owner` to the peer's device `reader`. Asked first, it is tried; a device's
  /// own memory needs no trial, because its bytes take no way between devices.
  Way Ask(const device::Device& owner, const DeviceUuid& reader);

  struct Offer {
    RegionId region;
    DeviceUuid reader{};
    std::shared_ptr<const DeviceRegion> cell;
  };
  /// Goes on. What is to be offered next, once.
  std::optional<Offer> Step();
  /// Of a trial cell.
  void OnVerdict(const SourceVerdict& verdict);
  /// The cell could not be offered.
  void Fail() { End(Way::kCannot); }
  /// The peer has no cell mapped any more, and no trial goes on.
  void Clear();
  /// The peer may have a cell mapped.
  [[nodiscard]] bool holds() const { return !cells_.empty(); }
  TrialCells TakeCells() { return std::exchange(cells_, {}); }

 private:
  using Pair = std::pair<DeviceUuid, DeviceUuid>;  ///< Owner and reader.
  static constexpr size_t kMost = 256;             ///< Sixteen devices on each side.
  struct Trial {
    device::Device owner;
    DeviceUuid reader{};
    bool making = false;
    uint32_t seed = 0;
    std::shared_ptr<const DeviceRegion> cell;  ///< Made, and not yet offered.
  };
  void Make();
  void OnMade(const Result<device::Trials::Cell>& made);
  void End(Way way);

  Context* context_;
  std::map<Pair, Way> ways_;
  std::deque<Trial> trials_;  ///< The first goes on.
  TrialCells cells_;          ///< Of the first: at most one.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace weightcast::transport::shm
