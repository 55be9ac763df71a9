#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "drivers/cuda/cuda.h"
#include "memory/memory.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// As nvidia-smi prints it: "GPU-8f1c...", with 4, 2, 2, 2 and 6 bytes.
std::string UuidText(const DeviceUuid& uuid);

/// One device as this process sees it.
struct Gpu {
  int ordinal = -1;
  drivers::CUdevice handle = 0;
  DeviceUuid uuid{};
  std::string name;
};

/// The primary context of a device, which somebody else made (torch, the CUDA runtime) and this keeps. Any
/// thread. In a child after fork() it lets go without a call.
class Context {
 public:
  Context(std::shared_ptr<drivers::Cuda> cuda, const Gpu& gpu, drivers::CUcontext raw);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  [[nodiscard]] int ordinal() const { return gpu_.ordinal; }
  [[nodiscard]] const DeviceUuid& uuid() const { return gpu_.uuid; }
  [[nodiscard]] drivers::Cuda& cuda() const { return *cuda_; }
  [[nodiscard]] drivers::CUcontext raw() const { return raw_; }
  /// This process is a child of the one that made it: no call may be made.
  [[nodiscard]] bool forked() const;

 private:
  const std::shared_ptr<drivers::Cuda> cuda_;
  const Gpu gpu_;
  const drivers::CUcontext raw_;
  const uint32_t forks_;
};

/// While it exists, calls of this thread go to `context`, and do not disturb a stream that another thread
/// captures. Costs 0.2 us. Ask status() first: kInternal after fork() or where the driver refuses.
class ContextScope {
 public:
  explicit ContextScope(const Context& context);
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope();
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Context& context_;
  const int outer_;  ///< DeviceInScope before.
  drivers::CUstreamCaptureMode mode_{};
  Status status_;
};

/// The devices of this process. Ordinals are this process's own; UUIDs are the same everywhere. Any thread.
class Gpus {
 public:
  /// As LoadCuda and Create; kUnavailable where the setting `gpu` is off, and then nothing is loaded.
  static Result<std::shared_ptr<Gpus>> Open(const Settings& settings, drivers::CudaUse use);
  /// Initialises the driver, which makes no context. kUnavailable where there is no device.
  static Result<std::shared_ptr<Gpus>> Create(std::shared_ptr<drivers::Cuda> cuda);

  [[nodiscard]] std::span<const Gpu> all() const { return gpus_; }
  /// nullopt: this process does not see that device (CUDA_VISIBLE_DEVICES), or it is another host's.
  [[nodiscard]] std::optional<int> OrdinalOf(const DeviceUuid& uuid) const;
  /// The device's primary context if there is one. kInvalidArgument: no such device. kUnavailable: nobody in
  /// this process uses it, and a context of ours would cost the user 525 MiB of it.
  [[nodiscard]] Result<std::shared_ptr<const Context>> Retain(int ordinal) const;
  [[nodiscard]] drivers::Cuda& cuda() const { return *cuda_; }
  /// kInternal in a child after fork().
  [[nodiscard]] Status Usable() const;

 private:
  Gpus(std::shared_ptr<drivers::Cuda> cuda, std::vector<Gpu> gpus);
  const std::shared_ptr<drivers::Cuda> cuda_;
  const std::vector<Gpu> gpus_;
  const uint32_t forks_;
};

}  // namespace weightcast::device
