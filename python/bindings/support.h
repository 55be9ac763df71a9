#pragma once

#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "interpreter.h"
#include "weightcast/clock.h"
#include "weightcast/device.h"
#include "weightcast/memory.h"
#include "weightcast/status.h"

namespace weightcast::bindings {

/// Thrown out of a binding; becomes weightcast.Error or the subclass of its code.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  [[nodiscard]] const char* what() const noexcept override { return status_.message().c_str(); }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
};

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}
template <typename T>
T ValueOrThrow(Result<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return std::move(result).value();
}

inline nb::bytes BytesOf(const std::string& text) { return nb::bytes(text.data(), text.size()); }

/// `device`: -1: host memory.
inline Memory MemoryAt(uintptr_t address, size_t bytes, int device) {
  return {.kind = device < 0 ? MemoryKind::kHost : MemoryKind::kDevice,
          .device = device,
          .address = reinterpret_cast<std::byte*>(address),  // NOLINT(performance-no-int-to-ptr)
          .length = bytes};
}

/// Without the GIL; an interrupted call raises what has interrupted it.
template <typename Call>
auto CallUnlocked(Call&& call) {
  auto outcome = [&] {
    const GilRelease release;
    return call();
  }();
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return outcome;
}

/// A worker of the core as a Python object has it. It is closed without the GIL, and only by the process that
/// made it: in a forked child its threads do not exist, so there it is left as it is.
template <typename Worker>
class Held {
 public:
  explicit Held(std::unique_ptr<Worker> worker) : worker_(std::move(worker)), owner_(::getpid()) {}
  Held(Held&& other) noexcept = default;
  Held& operator=(Held&&) = delete;
  ~Held() {
    if (worker_ == nullptr) return;
    if (::getpid() != owner_) {
      (void)worker_.release();
      return;
    }
    const GilRelease release;
    worker_.reset();
  }
  Worker* operator->() const { return worker_.get(); }
  Worker& operator*() const { return *worker_; }

 private:
  std::unique_ptr<Worker> worker_;
  pid_t owner_;
};

inline void OutcomeOf(const Status& status) { ThrowIfError(status); }
template <typename T>
T OutcomeOf(Result<T> result) {
  return ValueOrThrow(std::move(result));
}

/// What Python gives for a deadline: seconds from now.
template <typename T>
using FromPython = std::conditional_t<std::is_same_v<T, TimePoint>, double, T>;
inline TimePoint ToCore(double seconds) { return In(seconds); }
template <typename T>
T&& ToCore(T& value) {
  return std::move(value);
}

template <typename Worker>
Worker& CoreOf(Held<Worker>& held) {
  return *held;
}
template <typename Core>
Core& CoreOf(Core& core) {
  return core;
}

/// For Python a method of `Self`, or of what Held has: called without the GIL, its error thrown.
template <typename Self = void, typename Core, typename Outcome, typename... Args>
auto Unlocked(Outcome (Core::*method)(Args...)) {
  using Object = std::conditional_t<std::is_void_v<Self>, Held<Core>, Self>;
  return [method](Object& self, FromPython<Args>... args) {
    const auto call = [&] { return (CoreOf(self).*method)(ToCore(args)...); };
    if constexpr (std::is_void_v<Outcome>) {
      const GilRelease release;
      call();
    } else {
      return OutcomeOf(CallUnlocked(call));
    }
  };
}

/// The streams of these devices that `stream` names, as weightcast.gpu.streams_of has it: None for those in
/// which the thread works. With the GIL, inside an InterpreterUse.
std::vector<StreamRef> StreamsOf(const std::set<int>& devices, nb::handle stream);
/// For what is left in a stream: kTimedOut at the deadline, and Ctrl-C ends it. Without the GIL.
Status AwaitStream(const StreamRef& stream, TimePoint deadline);

void BindStatus(nb::module_& module);
void BindTensor(nb::module_& module);
void BindMemory(nb::module_& module);
void BindWorker(nb::module_& module);
void BindP2p(nb::module_& module);

}  // namespace weightcast::bindings
