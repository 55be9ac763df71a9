#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/task_queue.h"
#include "device/describe.h"
#include "device/devices.h"
#include "device/trials.h"
#include "device/wake_signal.h"
#include "memory/memory.h"
#include "transport/shm/stage_budget.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::transport::shm {

/// A region of device memory: what the driver says of it, and the device that copies to and from it.
struct DeviceRegion {
  std::shared_ptr<const device::DeviceMemory> memory;
  device::Device device;
  [[nodiscard]] const DeviceUuid& uuid() const { return memory->memory.device; }
  /// Where the region begins in its allocation.
  [[nodiscard]] uint64_t offset() const {
    return static_cast<uint64_t>(memory->memory.address - memory->memory.allocation.base);
  }
};

/// What wc-device leaves for the holder of progress. Outlives the transport for tasks that come late.
class DeviceReports {
 public:
  /// wc-device; whatever wakes the transport is rung when the worker's task is over.
  void Leave(std::function<void()> report) { reports_.Push(MakeTask(std::move(report))); }
  /// The holder of progress: runs what was left. True if there was anything.
  bool Take() { return reports_.RunAll() > 0; }
  [[nodiscard]] bool empty() const { return reports_.empty(); }

 private:
  TaskQueue reports_;
};

/// What one transport object uses of this process's devices; made with its first device region. It keeps each
/// device that it has used to its own end, because the last holder of a device waits for the device's thread.
class DeviceSide {
 public:
  /// As device::DevicesInProcess.
  static Result<std::unique_ptr<DeviceSide>> Create(const Settings& settings);
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;
  ~DeviceSide();

  /// Any thread that may block in the driver. Errors are those of device::Describe and Devices::Of.
  Result<std::shared_ptr<const DeviceRegion>> Describe(const DescribedMemory& memory);

  /// The device of that identity if a region here is of it; no worker otherwise.
  [[nodiscard]] device::Device Find(const DeviceUuid& uuid);

  // --- The holder of progress
  [[nodiscard]] const std::shared_ptr<DeviceReports>& reports() const { return reports_; }
  [[nodiscard]] device::WakeSignal& signal() const { return *signal_; }
  [[nodiscard]] StageBudget& stage_budget() { return stage_budget_; }
  /// Where that device, one of Find's, tries ways to others.
  device::Trials& TrialsOf(const device::Device& device);

 private:
  DeviceSide(std::shared_ptr<device::Devices> devices, std::shared_ptr<device::WakeSignal> signal,
             uint64_t pinned);
  Result<device::Device> Use(int ordinal);

  const std::shared_ptr<device::Devices> devices_;
  const std::shared_ptr<device::WakeSignal> signal_;
  const std::shared_ptr<DeviceReports> reports_ = std::make_shared<DeviceReports>();
  StageBudget stage_budget_;
  std::mutex mutex_;                  ///< Guards the next.
  std::vector<device::Device> used_;  ///< By ordinal.
  /// The holder of progress. Before the devices go, these do.
  std::map<const device::Worker*, std::unique_ptr<device::Trials>> trials_;
};

}  // namespace weightcast::transport::shm
