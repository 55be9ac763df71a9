#include "weightcast/memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include "support.h"
#include "weightcast/device_buffer.h"

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

  nb::class_<DeviceBuffer>(module, "DeviceBytes",
                           "Memory of a GPU that other processes of this host can map.")
      .def_prop_ro(
          "address",
          [](const DeviceBuffer& self) { return reinterpret_cast<uintptr_t>(self.memory().address); })
      .def_prop_ro("nbytes", [](const DeviceBuffer& self) { return self.memory().length; })
      .def_prop_ro("device", [](const DeviceBuffer& self) { return self.memory().device; });
  module.def(
      "allocate_device",
      [](size_t bytes, int device) {
        return ValueOrThrow([&] {
          const GilRelease release;
          return AllocateDevice(bytes, device);
        }());
      },
      nb::arg("bytes"), nb::arg("device"), "Memory of a GPU that this process uses already.");
  module.def(
      "device_of",
      [](uintptr_t address, size_t bytes) {
        auto* const begin = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
        return ValueOrThrow(RecogniseMemory({begin, bytes})).device;
      },
      nb::arg("address"), nb::arg("bytes"), "The ordinal of the GPU whose memory this is; -1: host memory.");
  module.def(
      "wait_stream",
      [](int device, uintptr_t stream) {
        ThrowIfError([&] {
          const GilRelease release;
          // NOLINTNEXTLINE(performance-no-int-to-ptr)
          return WaitStream({.device = device, .stream = reinterpret_cast<void*>(stream)});
        }());
      },
      nb::arg("device"), nb::arg("stream"), "Returns when all that was left in the stream is over.");
}

}  // namespace weightcast::bindings
