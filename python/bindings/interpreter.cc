#include "interpreter.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

namespace weightcast::bindings {
namespace {

/// Python that runs under our frames may wait for something else.
constexpr auto kLongestUse = std::chrono::seconds(2);

std::atomic<bool> ending{false};
std::atomic<std::thread::id> ender;  ///< The thread that ends the interpreter.
std::atomic<int64_t> uses{0};

[[noreturn]] void StandStill() {
  while (true) ::pause();
}

/// The atexit hook. Who is on the way to the GIL gets it; whoever comes later stands still.
void EndInterpreter() {
  ender = std::this_thread::get_id();
  ending = true;
  PyThreadState* const state = PyEval_SaveThread();
  const auto deadline = std::chrono::steady_clock::now() + kLongestUse;
  while (uses > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  PyEval_RestoreThread(state);
}

std::thread::id importer;  ///< Python's main thread, where that is not the process's.

bool IsMainThread() { return ::getpid() == ::syscall(SYS_gettid) || importer == std::this_thread::get_id(); }

thread_local std::optional<Interrupt> interrupt;

}  // namespace

InterpreterUse::InterpreterUse(bool has_gil) {
  ++uses;
  if (!ending || ender.load() == std::this_thread::get_id()) return;
  --uses;
  if (has_gil) PyEval_SaveThread();
  StandStill();
}

InterpreterUse::~InterpreterUse() { --uses; }

bool Interrupted() {
  if (interrupt && interrupt->is_set()) return true;
  if (!IsMainThread()) return false;  // Python handles signals on its main thread alone.
  const InterpreterUse use(/*has_gil=*/false);
  const nb::gil_scoped_acquire gil;
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
}

void BindInterpreter(nb::module_& module) {
  // What daemon threads hold when the interpreter ends is never given back, and is no leak.
  nb::set_leak_warnings(std::getenv("WC_LEAK_WARNINGS") != nullptr);
  nb::class_<Interrupt>(module, "CoreInterrupt", nb::is_weak_referenceable())
      .def(nb::init<>())
      .def("set", &Interrupt::Set);
  module.def(
      "interrupt_when",
      [](const Interrupt* when) { when == nullptr ? interrupt.reset() : void(interrupt = *when); },
      nb::arg("interrupt").none(),
      "Calls of this thread that wait end once `interrupt` is set; None: no more.");
  importer = std::this_thread::get_id();
  ::pthread_atfork(nullptr, nullptr, [] { uses = 0; });  // The threads that were counted are the parent's.
  module.def("interpreter_ends", [] { return ending.load(); });
  module.def("end_interpreter", &EndInterpreter);
  nb::module_::import_("atexit").attr("register")(module.attr("end_interpreter"));
}

}  // namespace weightcast::bindings
