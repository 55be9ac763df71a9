#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "endpoint.h"

// Regions of this process and of peers, and slices of them by bytes.
namespace weightcast::bindings {
namespace {

std::string Bytes(uint64_t from, uint64_t to) {
  return "bytes " + std::to_string(from) + " to " + std::to_string(to);
}

int64_t IndexOf(nb::handle number) {
  const Py_ssize_t value = PyNumber_AsSsize_t(number.ptr(), PyExc_OverflowError);
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return value;
}

/// What stands for this end of a slice; a negative one counts from the end.
int64_t EndOf(const nb::slice& slice, const char* name, int64_t fallback, int64_t length) {
  const nb::object end = slice.attr(name);
  if (end.is_none()) return fallback;
  const int64_t value = IndexOf(end);
  return value < 0 ? value + length : value;
}

template <typename Slice>
Slice CutSlice(const Slice& whole, const nb::slice& slice) {
  const auto [offset, length] = RangeOf(slice, whole.length);
  Slice cut = whole;
  cut.offset += offset;
  cut.length = length;
  return cut;
}

bool IsClosed(const LocalSlice& slice) { return slice.registered == nullptr || slice.registered->closed(); }

void CheckOpen(const LocalSlice& slice) {
  if (IsClosed(slice)) {
    throw StatusError(
        {Code::kInvalidArgument, "this region of " + std::to_string(slice.length) +
                                     " bytes was closed by close(); register its memory again"});
  }
}

void CloseRegion(LocalRegion& region, std::optional<double> timeout) {
  if (region.registered == nullptr) return;
  region.host->Check();
  const std::shared_ptr<Registered> registered = region.registered;
  registered->SetClosed();
  Status last;
  const auto deadline = timeout ? In(*timeout) : In(region.host->settings().lease);
  const auto found = LookUntil("Region.close", deadline, [&](TimePoint until) -> std::optional<Status> {
    last = registered->region().Close(until);
    if (last.code() == Code::kTimedOut) return std::nullopt;
    return last;
  });
  ThrowIfError(found.value_or(last));
  region.registered.reset();  // Transfers that still read or write the memory hold it as well.
}

nb::bytes Descriptor(const LocalRegion& region) {
  CheckOpen(region);
  return BytesOf(region.registered->region().Descriptor());
}

std::string Text(const char* what, uint64_t offset, uint64_t length) {
  return std::string("<") + what + " " + Bytes(offset, offset + length) + ">";
}

template <typename Slice>
void BindSlice(nb::class_<Slice>& bound) {
  bound.def("__len__", [](const Slice& self) { return self.length; })
      .def_prop_ro("nbytes", [](const Slice& self) { return self.length; })
      .def(
          "__getitem__", &CutSlice<Slice>, nb::arg("bytes"),
          "Some of its bytes, by offset; negative ones count from the end. Raises `OutOfBounds` where a list "
          "would give less.");
}

}  // namespace

std::pair<uint64_t, uint64_t> RangeOf(const nb::slice& slice, uint64_t length) {
  const auto size = static_cast<int64_t>(length);
  const nb::object step = slice.attr("step");
  if (!step.is_none() && IndexOf(step) != 1) {
    throw StatusError({Code::kInvalidArgument,
                       "a slice of a region takes no step; for bytes that lie apart, give read or write a "
                       "list of pairs, or `pieces`"});
  }
  const int64_t from = EndOf(slice, "start", 0, size);
  const int64_t to = EndOf(slice, "stop", size, size);
  if (from < 0 || to > size || from > to) {
    throw StatusError({Code::kOutOfBounds, "bytes " + std::to_string(from) + " to " + std::to_string(to) +
                                               " are not inside a region of " + std::to_string(length) +
                                               " bytes; give 0 <= start <= stop <= that"});
  }
  return {static_cast<uint64_t>(from), static_cast<uint64_t>(to - from)};
}

void BindRegions(nb::module_& module) {
  nb::class_<LocalSlice> slice(module, "RegionSlice", "Some bytes of a region of this process.");
  BindSlice(slice);
  slice.def("__repr__", [](const LocalSlice& self) { return Text("RegionSlice", self.offset, self.length); });

  nb::class_<LocalRegion, LocalSlice>(
      module, "Region",
      "Registered memory of this process, as `Endpoint.register` gives it. It keeps the memory alive. Closed "
      "with its last reference, or by `with`; transfers under way hold references.")
      .def_prop_ro(
          "array",
          [](const LocalRegion& self) {
            CheckOpen(self);
            return self.registered->memory();
          },
          "The array or tensor that was registered; a uint8 array of the bytes of any other object.")
      .def_prop_ro("descriptor", &Descriptor, "What a peer's `Connection.import_region` needs. Opaque bytes.")
      .def_prop_ro(
          "writable", [](const LocalRegion& self) { return !IsClosed(self) && self.registered->writable(); },
          "Whether reads may land in it.")
      .def_prop_ro("closed", [](const LocalRegion& self) { return IsClosed(self); })
      .def("close", &CloseRegion, nb::arg("timeout") = nb::none(),
           "Ends the registration and this process' transfers that use it (`Cancelled`), and returns when no "
           "peer can touch the memory. Safe to call twice.\n\n`TimedOut` after `timeout` seconds (None: the "
           "lease): a stopped peer might still write there. Keep the memory, and call again.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](LocalRegion& self, const nb::args&) { CloseRegion(self, std::nullopt); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const LocalRegion& self) {
        return "<Region of " + std::to_string(self.length) + " bytes" + (IsClosed(self) ? ", closed>" : ">");
      });

  nb::class_<RemoteSlice> remote(module, "RemoteSlice", "Some bytes of a peer's region.");
  BindSlice(remote);
  remote.def("__repr__",
             [](const RemoteSlice& self) { return Text("RemoteSlice", self.offset, self.length); });

  nb::class_<RemoteRegion, RemoteSlice>(
      module, "RemoteRegion",
      "A peer's region, usable on the connection that imported it. Keeps none of the peer's memory: the peer "
      "may close its region at any time, and transfers then fail.")
      .def("__repr__", [](const RemoteRegion& self) {
        return "<RemoteRegion of " + std::to_string(self.length) + " bytes>";
      });
}

}  // namespace weightcast::bindings
