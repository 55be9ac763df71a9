#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "support.h"

namespace weightcast::bindings {

// The exception classes are Python's (weightcast/errors.py): one for each code, made by error_for(code,
// message).
void BindStatus(nb::module_& module) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      const InterpreterUse use(/*has_gil=*/true);
      const nb::object made =
          nb::module_::import_("weightcast.errors")
              .attr("error_for")(CodeName(error.status().code()), error.status().message());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
    }
  });
  module.attr("__all__") = nb::make_tuple();
}

}  // namespace weightcast::bindings
