#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>

// Threads and the end of the interpreter. When it ends, CPython up to 3.13 ends each thread that wants the
// GIL by unwinding its stack; through frames of C++ that is std::terminate. So no thread may want the GIL
// then while it has our frames: an atexit hook says that the end has come, and from then on a thread that
// would take the GIL stands still for ever instead. It is a daemon thread, and the process is about to end.
// The thread that ends the interpreter goes on unchanged.
namespace weightcast::bindings {

namespace nb = nanobind;

/// While one exists the hook waits, so the GIL can be taken, and Python be run under frames of ours. Made
/// after the hook it never returns. `has_gil`: whether this thread has the GIL, which it lets go of before it
/// stands still.
class InterpreterUse {
 public:
  explicit InterpreterUse(bool has_gil);
  InterpreterUse(const InterpreterUse&) = delete;
  InterpreterUse& operator=(const InterpreterUse&) = delete;
  ~InterpreterUse();
};

/// nb::gil_scoped_release that survives the end of the interpreter. No lock that others wait for may be held
/// where it ends.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease() {
    const InterpreterUse use(/*has_gil=*/false);
    PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* const state_;
};

/// Ends the calls that wait on a thread, from any other.
class Interrupt {
 public:
  void Set() { *set_ = true; }
  [[nodiscard]] bool is_set() const { return *set_; }

 private:
  std::shared_ptr<std::atomic<bool>> set_ = std::make_shared<std::atomic<bool>>(false);
};

/// What WorkerOptions::interrupted is here: Ctrl-C was pressed (its exception is then set), or the Interrupt
/// that `interrupt_when` named for this thread is set. Without the GIL, which only the main thread takes.
bool Interrupted();

void BindInterpreter(nb::module_& module);

}  // namespace weightcast::bindings
