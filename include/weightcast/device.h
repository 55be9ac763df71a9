#pragma once

namespace weightcast {

/// A stream of a GPU: kernels and copies that its user leaves there run one after another.
struct StreamRef {
  int device = 0;          ///< Its ordinal in this process.
  void* stream = nullptr;  ///< CUstream, or cudaStream_t; null: the legacy default stream.
};

/// Work that must be over before a transfer may read its local memory: a stream's position.
/// Endpoint::Record makes one; host memory needs none.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Any thread; makes no driver call.
  [[nodiscard]] virtual bool Done() const = 0;
};

}  // namespace weightcast
