#include "endpoint.h"
#include "interpreter.h"
#include "support.h"
#include "weightcast/version.h"

NB_MODULE(_weightcast, module) {
  using namespace weightcast::bindings;  // NOLINT(google-build-using-namespace)
  module.doc() = "The C++ core of weightcast; use the package `weightcast`.";
  module.def("library_version", &weightcast::LibraryVersion);
  BindInterpreter(module);
  BindStatus(module);
  BindTensor(module);
  BindMemory(module);
  BindWorker(module);
  BindP2p(module);
  BindEndpoint(module);
}
