#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "device/gpus.h"
#include "kernels/convert.h"
#include "kernels/digest.h"
#include "kernels/gather.h"
#include "kernels/quantise.h"
#include "weightcast/status.h"

namespace weightcast::device {

/// One launch of a kernel of src/kernels.
struct Launch {
  const char* kernel = nullptr;  ///< Its name in the PTX text; not copied.
  uint32_t blocks = 1;
  uint32_t threads = 1;
  std::variant<kernels::CastParameters, kernels::GatherParameters, kernels::DigestParameters,
               kernels::QuantiseBlocksParameters>
      parameters;
};

/// Our kernels on one device, over streams of its own: for threads that may block in the driver, never while
/// holding progress. Thread safe; callers run side by side, each on its own stream. After fork() every call
/// fails and nothing is given back.
class Kernels {
 public:
  /// Has the driver compile the PTX text for this device, which takes up to seconds where the driver's cache
  /// does not have it. Errors: kInternal or kUnavailable, with the driver's words.
  static Result<std::shared_ptr<Kernels>> Load(std::shared_ptr<const Context> context);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  /// Runs all of them, one after another, and returns when the last is over; also after an error nothing of
  /// them runs any more. kInternal, with the driver's words.
  Status Run(std::span<const Launch> launches);
  /// Runs the kernel `digest` for each of the boxes, and gives what each comes to when the last is over:
  /// `sums` are as many. Errors as above; `sums` are then of no use.
  Status Digest(std::span<const kernels::DigestParameters> boxes, std::span<kernels::DigestSums> sums);
  /// For launches in streams of the caller's, whose thread is in the device's context. `name`: in the PTX
  /// text; not copied. Usable as long as this exists.
  Result<drivers::CUfunction> FunctionOf(const char* name);

  [[nodiscard]] const std::shared_ptr<const Context>& context() const { return context_; }

 private:
  /// What one caller at a time uses.
  struct Lane {
    drivers::CUstream stream{};
    drivers::CUevent event{};
    drivers::CUdeviceptr sums{};  ///< Of a batch of digests, made for the first; none: 0.
    void* landed = nullptr;       ///< The same in pinned host memory.
  };
  explicit Kernels(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
  Status LoadModule();
  Result<Lane> TakeLane();
  void GiveLane(const Lane& lane);
  Status OpenSums(Lane& lane);
  Status DigestBatch(const Lane& lane, std::span<const kernels::DigestParameters> boxes,
                     std::span<kernels::DigestSums> sums);
  Status Begin(const Launch& launch, drivers::CUstream stream);
  Status Await(const Lane& lane);

  const std::shared_ptr<const Context> context_;
  drivers::CUmodule module_{};
  std::mutex mutex_;
  std::map<std::string_view, drivers::CUfunction> functions_;
  std::vector<Lane> free_;
};

/// The kernels of one device for all who use them, loaded once. Thread safe.
class KernelLoader {
 public:
  explicit KernelLoader(std::shared_ptr<const Context> context) : context_(std::move(context)) {}

  /// As Kernels::Load; a load that failed is not tried again. Others who call this wait meanwhile, so it is
  /// for threads that may block in the driver.
  Result<std::shared_ptr<Kernels>> Get();
  /// What Get has loaded, or its error; nullptr: nothing yet. Waits for nobody.
  Result<std::shared_ptr<Kernels>> Loaded();

 private:
  const std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  std::shared_ptr<Kernels> loaded_;
  Status failure_;
};

}  // namespace weightcast::device
