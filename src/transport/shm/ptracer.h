#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace weightcast::transport::shm {

/// Which peers may trace this process, where Yama reserves that for its parents (kernel.yama.ptrace_scope =
/// 1, as on Ubuntu). Cross-process copy needs that right at each call, not only when a link is made. The
/// kernel keeps one such permission for a process: for one peer, or for every process of the user. Thread
/// safe.
class Ptracer {
 public:
  enum class Policy { kOff, kPeer, kAny };  ///< The setting `ptracer`.
  static Policy PolicyOf(const std::string& setting);

  /// Sets the permission: a pid, 0 for nobody, PR_SET_PTRACER_ANY.
  using Permit = std::function<void(unsigned long tracer)>;
  /// Whether Yama asks for it.
  using Reserved = std::function<bool()>;
  Ptracer(Permit permit, Reserved reserved) : permit_(std::move(permit)), reserved_(std::move(reserved)) {}
  Ptracer(const Ptracer&) = delete;
  Ptracer& operator=(const Ptracer&) = delete;
  /// prctl(PR_SET_PTRACER).
  static Ptracer& OfProcess();

  /// Holds a permission; the last that ends takes it back.
  class Right {
   public:
    Right() = default;
    explicit Right(Ptracer* of) : of_(of) {}
    Right(Right&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Right& operator=(Right&& other) noexcept {
      std::swap(of_, other.of_);
      return *this;
    }
    ~Right() { Reset(); }
    void Reset() {
      if (of_ != nullptr) std::exchange(of_, nullptr)->End();
    }

   private:
    Ptracer* of_ = nullptr;
  };
  /// Permits what the policy says. Nothing with kOff, where nothing is reserved, and with kPeer while another
  /// peer has the permission.
  [[nodiscard]] Right Allow(Policy policy, int peer);

 private:
  void End();

  const Permit permit_;
  const Reserved reserved_;
  std::mutex mutex_;
  unsigned long tracer_ = 0;
  size_t rights_ = 0;
};

}  // namespace weightcast::transport::shm
