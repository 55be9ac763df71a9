#pragma once

#include <utility>

#include "base/fd.h"

namespace weightcast {

/// A listening socket that is this process' alone. A child that is forked without exec lets go of it at once:
/// otherwise the port would stay taken while the child runs, and peers would connect to nobody.
class Listener {
 public:
  Listener() = default;
  explicit Listener(UniqueFd fd);
  Listener(Listener&& other) noexcept : fd_(std::move(other.fd_)) {}
  Listener& operator=(Listener&& other) noexcept;
  ~Listener() { reset(); }

  [[nodiscard]] int get() const { return fd_.get(); }
  [[nodiscard]] bool valid() const { return fd_.valid(); }
  void reset();

 private:
  UniqueFd fd_;
};

}  // namespace weightcast
