#include "transport/shm/source_trials.h"

#include <mutex>

#include "base/log.h"

namespace weightcast::transport::shm {

TrialCells::~TrialCells() {
  if (cells_.empty()) return;
  // Never destroyed, and found by leak checkers.
  static auto* const kept = new std::vector<device::Trials::Cell>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (auto& cell : cells_) kept->push_back(std::move(cell));
}

SourceTrials::Way SourceTrials::Ask(const device::Device& owner, const DeviceUuid& reader) {
  const DeviceUuid& own = owner.worker->context().uuid();
  if (own == reader) return Way::kWorks;
  if (const auto known = ways_.find(Pair{own, reader}); known != ways_.end()) return known->second;
  if (ways_.size() >= kMost) return Way::kCannot;  // No host has so many devices.
  ways_.emplace(Pair{own, reader}, Way::kTrying);
  trials_.push_back({.owner = owner, .reader = reader, .cell = nullptr});
  return Way::kTrying;
}

std::optional<SourceTrials::Offer> SourceTrials::Step() {
  if (trials_.empty()) return std::nullopt;
  Trial& trial = trials_.front();
  if (!trial.making) Make();
  if (trial.cell == nullptr) return std::nullopt;
  return Offer{{kTrialRegion, trial.seed}, trial.reader, std::exchange(trial.cell, nullptr)};
}

void SourceTrials::Make() {
  Trial& trial = trials_.front();
  trial.making = true;
  DeviceSide& side = *context_->devices();
  side.TrialsOf(trial.owner)
      .MakeCell([reports = side.reports(), alive = std::weak_ptr(alive_), this](auto made) {
        reports->Leave([alive, this, made = std::move(made)] {
          if (!alive.expired()) OnMade(made);
        });
      });
}

void SourceTrials::OnMade(const Result<device::Trials::Cell>& made) {
  if (trials_.empty()) return;  // The peer has ended meanwhile.
  Trial& trial = trials_.front();
  if (!made.ok()) {
    WC_LOG(kWarning, "memory of device ", trial.owner.worker->context().ordinal(),
           " goes to peers through host memory, which is slower, since no way between devices can be tried: ",
           made.status().message());
    return End(Way::kCannot);
  }
  trial.seed = (*made)->seed;
  auto memory = std::shared_ptr<const device::DeviceMemory>(*made, &(*made)->memory);
  trial.cell = std::make_shared<const DeviceRegion>(DeviceRegion{std::move(memory), trial.owner});
  cells_.Hold(*made);
}

void SourceTrials::OnVerdict(const SourceVerdict& verdict) {
  if (trials_.empty() || !holds()) return;
  const Trial& trial = trials_.front();
  if (verdict.region.second != trial.seed || verdict.reader != trial.reader || trial.cell != nullptr) return;
  End(verdict.reads ? Way::kWorks : Way::kCannot);
}

void SourceTrials::End(Way way) {
  if (trials_.empty()) return;
  const Trial& trial = trials_.front();
  ways_[{trial.owner.worker->context().uuid(), trial.reader}] = way;
  trials_.pop_front();
  cells_.GiveBack();
}

void SourceTrials::Clear() {
  alive_ = std::make_shared<bool>(true);  // A cell that is being made is nobody's.
  std::erase_if(ways_, [](const auto& way) { return way.second == Way::kTrying; });
  trials_.clear();
  cells_.GiveBack();
}

}  // namespace weightcast::transport::shm
