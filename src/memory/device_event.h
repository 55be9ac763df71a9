#pragma once

namespace weightcast {

/// Work that must be over before a transport may touch an operation's source: a CUDA stream's event.
/// Opaque here; host memory needs none.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  /// Any thread; makes no driver call.
  [[nodiscard]] virtual bool Done() const = 0;
};

}  // namespace weightcast
