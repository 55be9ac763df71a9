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

  nb::class_<Version>(
      module, "Version",
      "A published state of all weights of a model: (run, number). A new run supersedes an old one.")
      .def(nb::init<uint64_t, int64_t>(), nb::arg("run") = 0, nb::arg("number") = -1)
      .def_ro("run", &Version::run)
      .def_ro("number", &Version::number, "The trainer's number; -1: none yet.")
      .def("__repr__", [](const Version& version) { return "Version(" + ToString(version) + ")"; })
      .def("__str__", [](const Version& version) { return ToString(version); })
      .def("__int__", [](const Version& version) { return version.number; })
      .def("__hash__",
           [](const Version& version) {
             return version.run * 1000003U + static_cast<uint64_t>(version.number);
           })
      .def("__bool__", [](const Version& version) { return version.number >= 0; })
      .def(
          "__eq__", [](const Version& a, const Version& b) { return a == b; }, nb::is_operator())
      .def(
          "__lt__", [](const Version& a, const Version& b) { return a < b; }, nb::is_operator())
      .def(
          "__le__", [](const Version& a, const Version& b) { return a <= b; }, nb::is_operator())
      .def(
          "__gt__", [](const Version& a, const Version& b) { return a > b; }, nb::is_operator())
      .def("__ge__", [](const Version& a, const Version& b) { return a >= b; }, nb::is_operator());
}

}  // namespace weightcast::bindings
