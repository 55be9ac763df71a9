#include "weightcast/tensor.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "support.h"
#include "weightcast/version.h"

namespace weightcast::bindings {

void BindTensor(nb::module_& module) {
  module.def(
      "is_dtype", [](const std::string& name) { return DTypeFromName(name).has_value(); }, nb::arg("name"),
      "Whether weightcast knows a dtype of this safetensors name.");

  nb::class_<Version>(module, "Version",
                      "A published state of all weights of a model: (run, number). Equal versions are equal "
                      "bytes; `newer` says "
                      "which of two supersedes the other.")
      .def(nb::init<uint64_t, int64_t>(), nb::arg("run") = 0, nb::arg("number") = -1)
      .def_ro("run", &Version::run)
      .def_ro("number", &Version::number, "The trainer's number; -1: none yet.")
      .def_ro("label", &Version::label,
              "What trainer 0 gave to `publish`, such as \"step-80\"; not compared.")
      .def("__repr__", [](const Version& version) { return "Version(" + ToString(version) + ")"; })
      .def("__str__", [](const Version& version) { return ToString(version); })
      .def("__int__", [](const Version& version) { return version.number; })
      .def("__hash__",
           [](const Version& version) {
             return version.run * 1000003U + static_cast<uint64_t>(version.number);
           })
      .def("__bool__", [](const Version& version) { return version.number >= 0; })
      .def("__eq__", [](const Version& a, const Version& b) { return a == b; }, nb::is_operator());
  module.def(
      "newer", &Newer, nb::arg("a"), nb::arg("b"),
      "Whether version `a` supersedes `b`: a later run does, and within a run a greater number; any version "
      "supersedes none. None: two controllers have counted their runs, so neither is known to be newer.");
}

}  // namespace weightcast::bindings
