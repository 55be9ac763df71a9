#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "endpoint.h"

// Connections: transfers, and notices.
namespace weightcast::bindings {
namespace {

/// One row a piece: offset in the local slice, offset in the remote one, bytes.
using PieceTable = nb::ndarray<const uint64_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;

std::string TypeName(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

/// Several streams' positions as one.
class AllOver final : public DeviceEvent {
 public:
  explicit AllOver(std::vector<std::shared_ptr<const DeviceEvent>> events) : events_(std::move(events)) {}
  [[nodiscard]] bool Done() const override {
    return std::ranges::all_of(events_, [](const auto& event) { return event->Done(); });
  }

 private:
  const std::vector<std::shared_ptr<const DeviceEvent>> events_;
};

/// The pieces of one transfer, from what Python gives.
class Batch {
 public:
  /// `read`: into local memory.
  Batch(const Link& link, bool read) : link_(link), read_(read) {}

  void Add(nb::handle local, nb::handle remote) {
    const LocalSlice& from = LocalOf(local);
    const RemoteSlice& to = RemoteOf(remote);
    if (from.length != to.length) {
      throw StatusError({Code::kInvalidArgument,
                         "the local slice has " + std::to_string(from.length) + " bytes and the remote one " +
                             std::to_string(to.length) + "; give two of equal length"});
    }
    AddPiece(from, to, 0, 0, from.length);
  }
  void AddPairs(const nb::iterable& pairs) {
    size_t number = 0;
    for (const nb::handle pair : pairs) {
      At("pair ", number++, [&] {
        if (!nb::isinstance<nb::sequence>(pair) || nb::len(pair) != 2) {
          throw StatusError({Code::kInvalidArgument,
                             "this " + TypeName(pair) + " is not a pair; give (local slice, remote slice)"});
        }
        const nb::object local = pair[0];
        const nb::object remote = pair[1];
        Add(local, remote);
      });
    }
  }
  void AddTable(nb::handle local, nb::handle remote, const PieceTable& table) {
    const LocalSlice& from = LocalOf(local);
    const RemoteSlice& to = RemoteOf(remote);
    pieces_.reserve(table.shape(0));
    for (size_t row = 0; row < table.shape(0); ++row) {
      At("row ", row, [&] { AddPiece(from, to, table(row, 0), table(row, 1), table(row, 2)); });
    }
  }

  /// What `stream` (None: the device's current one) holds comes first: a write is held back until then, a
  /// read waits here, since kernels may still use the memory that it fills. With the GIL from the look at the
  /// regions on, so that nobody closes one in between.
  Flight Start(nb::handle stream, std::optional<double> timeout) {
    link_.host->Check();
    link_.host->keeper()->Sweep();
    TransferOptions options;
    options.deadline = timeout ? In(*timeout) : In(link_.host->settings().timeout);
    const auto streams = [&] {
      const InterpreterUse use(/*has_gil=*/true);
      return StreamsOf(Devices(), stream);
    }();
    if (read_) {
      for (const StreamRef& one : streams)
        ThrowIfError(CallUnlocked([&] { return AwaitStream(one, options.deadline); }));
    } else if (!streams.empty()) {
      options.after = Record(streams);
    }
    for (const auto& registered : registrations_) CheckOpen(registered.get());
    Connection connection = link_.connection;
    auto begun =
        read_ ? connection.Read(pieces_, std::move(options)) : connection.Write(pieces_, std::move(options));
    std::sort(registrations_.begin(), registrations_.end());
    registrations_.erase(std::unique(registrations_.begin(), registrations_.end()), registrations_.end());
    return {link_.host, ValueOrThrow(std::move(begun)), std::move(registrations_)};
  }

 private:
  /// Adds one of several; errors begin with its place, counted from 0.
  template <typename AddOne>
  static void At(const char* list, size_t place, const AddOne& add) {
    try {
      add();
    } catch (const StatusError& error) {
      throw StatusError(
          {error.status().code(), list + std::to_string(place) + ": " + error.status().message()});
    }
  }
  [[nodiscard]] std::set<int> Devices() const {
    std::set<int> devices;
    for (const auto& registered : registrations_)
      if (registered->device() >= 0) devices.insert(registered->device());
    return devices;
  }
  [[nodiscard]] std::shared_ptr<const DeviceEvent> Record(const std::vector<StreamRef>& streams) const {
    std::vector<std::shared_ptr<const DeviceEvent>> events;
    for (const StreamRef& stream : streams) {
      events.push_back(
          ValueOrThrow(link_.host->With([&](Endpoint& endpoint) { return endpoint.Record(stream); })));
    }
    return std::make_shared<AllOver>(std::move(events));
  }
  static void CheckOpen(const Registered* registered) {
    if (registered != nullptr && !registered->closed()) return;
    throw StatusError(
        {Code::kInvalidArgument, "the local region was closed by close(); register its memory again"});
  }
  const LocalSlice& LocalOf(nb::handle object) const {
    LocalSlice* slice = nullptr;
    if (!nb::try_cast(object, slice) || slice == nullptr) {
      throw StatusError(
          {Code::kInvalidArgument, "the local side is a " + TypeName(object) +
                                       "; give a Region of Endpoint.register, or a slice of one"});
    }
    CheckOpen(slice->registered.get());
    if (read_ && !slice->registered->writable()) {
      throw StatusError({Code::kInvalidArgument,
                         "a read fills the local region, which is of read-only memory; give a region "
                         "of memory that can be written"});
    }
    return *slice;
  }
  const RemoteSlice& RemoteOf(nb::handle object) const {
    RemoteSlice* slice = nullptr;
    if (!nb::try_cast(object, slice) || slice == nullptr) {
      throw StatusError(
          {Code::kInvalidArgument, "the remote side is a " + TypeName(object) +
                                       "; give what Connection.import_region returned, or a slice of it"});
    }
    if (&slice->imported->link() != &link_ && slice->imported->link().connection != link_.connection) {
      throw StatusError(
          {Code::kInvalidArgument, "the remote region was imported on another connection than this one to " +
                                       ToString(link_.connection.peer()) + "; import it on this one"});
    }
    return *slice;
  }
  void AddPiece(const LocalSlice& from, const RemoteSlice& to, uint64_t local_offset, uint64_t remote_offset,
                uint64_t length) {
    const auto local = ValueOrThrow(from.registered->region().Slice(from.offset, from.length));
    const auto remote = ValueOrThrow(to.imported->region().Slice(to.offset, to.length));
    pieces_.push_back(
        {ValueOrThrow(local.Slice(local_offset, length)), ValueOrThrow(remote.Slice(remote_offset, length))});
    if (registrations_.empty() || registrations_.back() != from.registered) {
      registrations_.push_back(from.registered);
    }
  }

  const Link& link_;
  const bool read_;
  std::vector<Piece> pieces_;
  Registrations registrations_;
};

Flight Post(const HeldLink& held, bool read, nb::handle local, nb::handle remote, nb::handle stream,
            std::optional<double> timeout) {
  Batch batch(*held.link, read);
  if (remote.is_none()) {
    LocalSlice* alone = nullptr;
    if (nb::try_cast(local, alone) || !nb::isinstance<nb::iterable>(local)) {
      throw StatusError({Code::kInvalidArgument, "the first argument is a " + TypeName(local) +
                                                     " and no second one is given; give a local and a "
                                                     "remote slice, or a list of such pairs"});
    }
    const InterpreterUse use(/*has_gil=*/true);  // A generator is Python.
    batch.AddPairs(nb::borrow<nb::iterable>(local));
  } else {
    batch.Add(local, remote);
  }
  return batch.Start(stream, timeout);
}

Flight PostTable(const HeldLink& held, bool read, nb::handle local, nb::handle remote,
                 const PieceTable& table, nb::handle stream, std::optional<double> timeout) {
  Batch batch(*held.link, read);
  batch.AddTable(local, remote, table);
  return batch.Start(stream, timeout);
}

// --- Transfers -----------------------------------------------------------------------------------

/// Until it has ended, or is fenced; its outcome. Raises TimedOut when only the waiting has ended.
Status WaitFor(Flight& flight, std::optional<double> timeout, bool fenced) {
  Transfer& transfer = flight.transfer();
  const auto over = [&] { return fenced ? transfer.fenced() : transfer.ended(); };
  if (over()) return transfer.Wait();
  flight.host().Check();
  const auto outcome = LookUntil("the wait for a transfer", DeadlineIn(timeout),
                                 [&](TimePoint until) -> std::optional<Status> {
                                   Status status = fenced ? transfer.WaitFenced(until) : transfer.Wait(until);
                                   if (over()) return transfer.Wait();
                                   if (status.code() == Code::kTimedOut) return std::nullopt;
                                   return status;
                                 });
  if (!outcome)
    throw StatusError({Code::kTimedOut, "the transfer of " + std::to_string(transfer.bytes()) +
                                            (fenced ? " bytes may still use its memory: keep it, check "
                                                      "that the peer runs, and wait again"
                                                    : " bytes has not ended within the timeout of this call "
                                                      "and continues; wait again, or cancel it")});
  if (!over()) ThrowIfError(*outcome);
  return *outcome;
}

void BindTransfer(nb::module_& module) {
  nb::class_<Flight>(module, "CoreTransfer")
      .def_prop_ro("ended", [](Flight& self) { return self.transfer().ended(); })
      .def_prop_ro("fenced", [](Flight& self) { return self.transfer().fenced(); })
      .def_prop_ro("nbytes", [](Flight& self) { return self.transfer().bytes(); })
      .def(
          "wait",
          [](Flight& self, std::optional<double> timeout) { ThrowIfError(WaitFor(self, timeout, false)); },
          nb::arg("timeout").none())
      .def(
          "wait_fenced",
          [](Flight& self, std::optional<double> timeout) { (void)WaitFor(self, timeout, true); },
          nb::arg("timeout").none())
      .def("cancel", [](Flight& self) { self.transfer().Cancel(); })
      .def("ring_at_end", [](Flight& self, const HeldCompletions& held, uint64_t number) {
        self.transfer().OnEnd([bell = Bell{held.queue, number}](const Status&) { bell.Ring(); });
      });
}

// --- Notices -------------------------------------------------------------------------------------

/// The peer's oldest notice; false: there is none yet. Errors: why none will come.
Result<bool> Look(Connection& connection, TimePoint until, std::string& taken) {
  for (TimePoint limit = until;; limit = Clock::now()) {
    const bool live = connection.status().ok();
    auto notice = connection.TakeNotice(limit);
    if (notice.ok()) {
      taken = std::move(notice).value();
      return true;
    }
    if (notice.status().code() != Code::kTimedOut) return notice.status();
    // The reason of an end may be a time-out too: then what was asked after the end counts.
    if (!live) return Status(Code::kUnavailable, notice.status().message());
    if (connection.status().ok()) return false;
  }
}

nb::bytes TakeNotice(const HeldLink& held, std::optional<double> timeout) {
  held.link->host->Check();
  Connection connection = held.link->connection;
  std::string taken;
  const auto found =
      LookUntil("take_notice", DeadlineIn(timeout), [&](TimePoint until) -> std::optional<Status> {
        auto looked = Look(connection, until, taken);
        if (looked.ok() && !*looked) return std::nullopt;
        return looked.status();
      });
  if (!found) {
    throw StatusError({Code::kTimedOut, "no notice has come within the timeout of this call from " +
                                            ToString(connection.peer()) + " (" + connection.address() +
                                            "); check that it runs and calls notify, then wait again"});
  }
  ThrowIfError(*found);
  return BytesOf(taken);
}

std::optional<nb::bytes> TryTakeNotice(const HeldLink& held) {
  held.link->host->Check();
  Connection connection = held.link->connection;
  std::string taken;
  if (!ValueOrThrow(Look(connection, Clock::now(), taken))) return std::nullopt;
  return BytesOf(taken);
}

void Notify(const HeldLink& held, const nb::bytes& message, std::optional<double> timeout) {
  held.link->host->Check();
  Connection connection = held.link->connection;
  const std::string_view bytes(message.c_str(), message.size());
  Status last;
  const auto found = LookUntil("notify", DeadlineIn(timeout), [&](TimePoint until) -> std::optional<Status> {
    last = connection.Notify(bytes, until);
    if (last.code() == Code::kTimedOut && connection.status().ok()) return std::nullopt;
    return last;
  });
  ThrowIfError(found.value_or(last));
}

RemoteRegion Import(const HeldLink& held, const nb::bytes& descriptor) {
  held.link->host->Check();
  const std::string_view bytes(descriptor.c_str(), descriptor.size());
  const auto imported = ValueOrThrow(CallUnlocked([&] { return held.link->connection.Import(bytes); }));
  RemoteRegion region;
  region.imported = std::make_shared<Imported>(held.link, imported);
  region.length = imported.length();
  return region;
}

}  // namespace

void BindConnection(nb::module_& module) {
  BindTransfer(module);
  nb::class_<HeldLink>(module, "CoreConnection")
      .def_prop_ro("peer", [](HeldLink& self) { return self.link->connection.peer(); })
      .def_prop_ro("address", [](HeldLink& self) { return self.link->connection.address(); })
      .def_prop_ro("transport", [](HeldLink& self) { return self.link->connection.transport_name(); })
      .def("describe", [](HeldLink& self) { return self.link->connection.Describe(); })
      .def("check", [](HeldLink& self) { ThrowIfError(self.link->connection.status()); })
      .def_prop_ro("usable", [](HeldLink& self) { return self.link->connection.status().ok(); })
      .def("same",
           [](HeldLink& self, HeldLink& other) { return self.link->connection == other.link->connection; })
      .def("import_region", &Import)
      .def("post", &Post, nb::arg("read"), nb::arg("local").none(), nb::arg("remote").none(),
           nb::arg("stream").none(), nb::arg("timeout").none())
      .def("post_table", &PostTable, nb::arg("read"), nb::arg("local").none(), nb::arg("remote").none(),
           nb::arg("table"), nb::arg("stream").none(), nb::arg("timeout").none())
      .def("notify", &Notify, nb::arg("message"), nb::arg("timeout").none())
      .def("take_notice", &TakeNotice, nb::arg("timeout").none())
      .def("try_take_notice", &TryTakeNotice)
      .def("close", [](HeldLink& self) {
        self.link->host->Check();
        self.link->connection.Close();
      });
}

}  // namespace weightcast::bindings
