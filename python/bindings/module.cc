#include "endpoint.h"
#include "support.h"
#include "weightcast/version.h"

NB_MODULE(_weightcast, module) {
  using namespace weightcast::bindings;  // NOLINT(google-build-using-namespace)
  module.doc() = "The C++ core of weightcast; use the package `weightcast`.";
  module.def("library_version", &weightcast::LibraryVersion);
  BindStatus(module);
  BindTensor(module);
  BindMemory(module);
  BindWorker(module);
  BindP2p(module);
  BindEndpoint(module);
}
