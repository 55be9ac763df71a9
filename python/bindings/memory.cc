#include "weightcast/memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include "host.h"
#include "support.h"
#include "weightcast/device_buffer.h"

namespace weightcast::bindings {

std::vector<StreamRef> StreamsOf(const std::set<int>& devices, nb::handle stream) {
  std::vector<StreamRef> streams;
  if (devices.empty()) return streams;
  nb::list numbers;
  for (const int device : devices) numbers.append(device);
  for (const nb::handle found : nb::module_::import_("weightcast.gpu").attr("streams_of")(numbers, stream)) {
    const auto address = nb::cast<uintptr_t>(found[1]);
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    streams.push_back({.device = nb::cast<int>(found[0]), .stream = reinterpret_cast<void*>(address)});
  }
  return streams;
}

Status AwaitStream(const StreamRef& stream, TimePoint deadline) {
  return WaitStream(stream, {}, deadline, Interrupted);
}

void BindMemory(nb::module_& module) {
  module.def(
      "allocate_bytes",
      [](size_t bytes) {
        auto buffer = ValueOrThrow([&] {
          const GilRelease release;
          return Allocate(bytes);
        }());
        // The array owns one handle: the memory exists as long as any view of it.
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
      [](int device, uintptr_t stream, std::optional<double> timeout) {
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        const StreamRef named{.device = device, .stream = reinterpret_cast<void*>(stream)};
        ThrowIfError(CallUnlocked([&] { return AwaitStream(named, DeadlineIn(timeout)); }));
      },
      nb::arg("device"), nb::arg("stream"), nb::arg("timeout") = nb::none(),
      "Returns when all that was left in the stream is over.");
  module.def(
      "copy_bytes",
      [](uintptr_t to, int to_device, uintptr_t from, int from_device, size_t bytes) {
        const Memory target = MemoryAt(to, bytes, to_device);
        const Memory source = MemoryAt(from, bytes, from_device);
        ThrowIfError(CallUnlocked([&] { return CopyMemory(target, source); }));
      },
      nb::arg("to"), nb::arg("to_device"), nb::arg("from_"), nb::arg("from_device"), nb::arg("bytes"),
      "Copies within this process, from and to host memory (-1) or a device's; returns when it is over.");
}

}  // namespace weightcast::bindings
