#include "weightcast/memory.h"

#include <nanobind/ndarray.h>

#include "support.h"

namespace weightcast::bindings {

void BindMemory(nb::module_& module) {
  module.def(
      "allocate_bytes",
      [](size_t bytes) {
        auto buffer = ValueOrThrow([&] {
          const GilRelease release;
          return Allocate(bytes);
        }());
        // The array owns one handle: the memory lives as long as any view of it.
        auto* handle = new std::shared_ptr<SharedBuffer>(buffer);
        const nb::capsule owner(handle, [](void* pointer) noexcept {
          delete static_cast<std::shared_ptr<SharedBuffer>*>(pointer);
        });
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(buffer->bytes().data(), {bytes}, owner);
      },
      nb::arg("bytes"), "A uint8 array in memory that other processes of this host can map.");
}

}  // namespace weightcast::bindings
