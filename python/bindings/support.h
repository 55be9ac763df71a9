#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>

#include "weightcast/status.h"

namespace weightcast::bindings {

namespace nb = nanobind;

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

/// How often a blocked call looks whether Ctrl-C was pressed. Seconds.
inline constexpr double kSlice = 0.1;

inline Status StatusOf(const Status& status) { return status; }
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.status();
}

/// Calls `wait(seconds)` in slices without the GIL and lets Python see signals between them. A slice that
/// ran out is told from an outcome kTimedOut by its length.
template <typename Wait>
auto WaitInSlices(double timeout, Wait&& wait) {
  using Steady = std::chrono::steady_clock;
  const auto begin = Steady::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Steady::now() - begin).count(); };
  while (true) {
    const double before = elapsed();
    const double slice = std::min(kSlice, std::max(timeout - before, 0.0));
    auto outcome = [&] {
      const nb::gil_scoped_release release;
      return wait(slice);
    }();
    const Status status = StatusOf(outcome);
    const bool slice_ran_out = status.code() == Code::kTimedOut && elapsed() - before >= slice * 0.9;
    if (!slice_ran_out || elapsed() >= timeout) return outcome;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// Runs a call that cannot be cut into slices on a thread of its own, so that Ctrl-C is obeyed; an
/// interrupted call runs to its own deadline and its result is dropped.
template <typename Call>
auto CallInterruptibly(Call call) {
  using Outcome = std::invoke_result_t<Call>;
  std::promise<Outcome> promise;
  auto future = promise.get_future();
  std::thread([call = std::move(call), promise = std::move(promise)]() mutable {
    promise.set_value(call());
  }).detach();
  while (true) {
    const bool ready = [&] {
      const nb::gil_scoped_release release;
      return future.wait_for(std::chrono::duration<double>(kSlice)) == std::future_status::ready;
    }();
    if (ready) return future.get();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void BindStatus(nb::module_& module);
void BindTensor(nb::module_& module);
void BindMemory(nb::module_& module);
void BindWorker(nb::module_& module);

}  // namespace weightcast::bindings
