#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/blocking_copies.h"
#include "device/buffer.h"
#include "weights.h"

namespace weightcast::soak {

/// A device as the program uses it whose weights lie there: the primary context, and copies that are waited
/// for. It outlives whatever lies on it. Thread safe.
class UsedDevice {
 public:
  static Result<std::unique_ptr<UsedDevice>> Open(int ordinal);
  UsedDevice(const UsedDevice&) = delete;
  UsedDevice& operator=(const UsedDevice&) = delete;
  ~UsedDevice();
  [[nodiscard]] const std::shared_ptr<const device::Context>& context() const { return context_; }
  [[nodiscard]] device::BlockingCopies& copies() const { return *copies_; }

 private:
  UsedDevice(std::shared_ptr<drivers::Cuda> cuda, int ordinal) : cuda_(std::move(cuda)), ordinal_(ordinal) {}
  Status Begin();

  const std::shared_ptr<drivers::Cuda> cuda_;
  const int ordinal_;
  std::shared_ptr<const device::Context> context_;
  std::shared_ptr<device::BlockingCopies> copies_;
};

/// What a rank has of a model, in host memory or on a device. Errors: the driver's.
class Tensors {
 public:
  /// `device` null: in host memory.
  static Result<std::unique_ptr<Tensors>> Make(const std::vector<TensorInfo>& model, test::Cut cut,
                                               uint32_t rank, uint32_t ranks, const UsedDevice* device);
  [[nodiscard]] const std::vector<Shard>& shards() const { return shards_; }
  Status Fill(int64_t version);
  /// How many elements are not those of `version`. All bytes are read, through the driver where they lie on a
  /// device. Any thread.
  Result<int64_t> Wrong(int64_t version) const;
  /// All bytes of others of the same model.
  Status CopyFrom(const Tensors& from);

 private:
  Tensors(test::Weights weights, const UsedDevice* device) : host_(std::move(weights)), device_(device) {}
  Status ToHost() const;
  Status ToDevice();

  mutable std::mutex mutex_;  ///< Of what is in host memory for a moment.
  test::Weights host_;        ///< On a device: what is read from there, or goes there.
  const UsedDevice* const device_;
  std::unique_ptr<device::Buffer> buffer_;
  std::vector<Shard> shards_;
};

}  // namespace weightcast::soak
