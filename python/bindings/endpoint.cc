#include "endpoint.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>

#include "control/token.h"

namespace weightcast::bindings {
namespace {

HeldHost CreateEndpoint(std::optional<std::string> token, std::string job, std::string role, uint32_t rank,
                        const std::map<std::string, std::string>& settings) {
  EndpointOptions options;
  options.settings = ValueOrThrow(Settings::From(settings));
  options.self = {.job = std::move(job), .role = std::move(role), .engine = {}, .rank = rank};
  options.token = token ? std::move(*token) : ValueOrThrow(control::LoadToken(options.settings)).text();
  return {ValueOrThrow(CallUnlocked([&] { return Host::Create(std::move(options)); }))};
}

Access AccessOf(const std::string& name) {
  if (name == "readwrite") return Access::kReadWrite;
  if (name == "read") return Access::kRead;
  if (name == "local") return Access::kLocal;
  throw StatusError({Code::kInvalidArgument, "access is '" + name + "'; allowed: readwrite, read, local"});
}

/// `array`: whose memory it is; kept until nobody can touch it any more.
LocalRegion Register(const HeldHost& self, uintptr_t address, size_t bytes, nb::object array, bool writable,
                     const std::string& access, int device) {
  self.host->keeper()->Sweep();
  const Memory memory = MemoryAt(address, bytes, device);
  const Access how = AccessOf(access);
  Region region =
      ValueOrThrow(self.host->With([&](Endpoint& endpoint) { return endpoint.Register(memory, how); }));
  LocalRegion made;
  made.host = self.host;
  made.registered = std::make_shared<Registered>(self.host->keeper(), std::move(region), std::move(array),
                                                 writable, device);
  made.length = bytes;
  return made;
}

HeldLink LinkOf(const HeldHost& self, Connection connection) {
  return {std::make_shared<Link>(self.host, std::move(connection))};
}

HeldLink Connect(const HeldHost& self, const std::vector<std::string>& addresses, std::string role,
                 uint32_t rank, uint64_t incarnation, std::optional<double> timeout) {
  const TimePoint deadline = timeout ? In(*timeout) : In(self.host->settings().connect_timeout);
  return LinkOf(self, ValueOrThrow(self.host->With([&](Endpoint& endpoint) {
                  const Identity expected{.job = endpoint.self().job,
                                          .role = std::move(role),
                                          .engine = {},
                                          .rank = rank,
                                          .incarnation = incarnation};
                  return endpoint.Connect(addresses, expected, deadline);
                })));
}

HeldLink Accept(const HeldHost& self, std::optional<double> timeout) {
  self.host->Check();
  Events& events = self.host->events();
  std::optional<Connection> taken;
  const auto found = LookUntil("accept", DeadlineIn(timeout), [&](TimePoint until) -> std::optional<Status> {
    taken = events.Take(until);
    if (taken) return Status::Ok();
    if (events.closed()) return EndpointClosed();
    return std::nullopt;
  });
  if (!found)
    throw StatusError(
        {Code::kTimedOut,
         "no peer has connected to this endpoint within the timeout of this call; check that one runs and "
         "connects to an address of this endpoint, then accept again"});
  ThrowIfError(*found);
  return LinkOf(self, std::move(*taken));
}

std::optional<HeldLink> TryAccept(const HeldHost& self) {
  self.host->Check();
  if (auto taken = self.host->events().Take(Clock::now())) return LinkOf(self, std::move(*taken));
  if (self.host->events().closed()) throw StatusError(EndpointClosed());
  return std::nullopt;
}

void CloseEndpoint(HeldHost& self) {
  self.host->Check();
  {
    const GilRelease release;
    self.host->Close();
  }
  self.host->keeper()->Sweep();
}

std::vector<std::string> ConnectionMap(const HeldHost& self) {
  return self.host->With([](Endpoint& endpoint) {
    std::vector<std::string> lines;
    for (const PeerInfo& peer : endpoint.Peers()) {
      lines.push_back(ToString(peer.identity) + ": " + peer.description);
    }
    return lines;
  });
}

void BindIdentity(nb::module_& module) {
  nb::class_<Identity>(module, "Identity", "Who a process is, as it has proven.")
      .def_ro("job", &Identity::job)
      .def_ro("role", &Identity::role)
      .def_ro("rank", &Identity::rank)
      .def_ro("incarnation", &Identity::incarnation,
              "Random, new for each endpoint: tells a process that was started again from the old one.")
      .def(
          "__eq__", [](const Identity& a, const Identity& b) { return a == b; }, nb::is_operator())
      .def("__hash__", [](const Identity& self) { return self.incarnation; })
      .def("__str__", [](const Identity& self) { return ToString(self); })
      .def("__repr__", [](const Identity& self) { return "<Identity " + ToString(self) + ">"; });
}

void BindCompletions(nb::module_& module) {
  nb::class_<HeldCompletions>(module, "CoreCompletions")
      .def_static("create", [] { return HeldCompletions{ValueOrThrow(Completions::Create())}; })
      .def_prop_ro("fd", [](const HeldCompletions& self) { return self.queue->fd(); })
      .def("take", [](const HeldCompletions& self) { return self.queue->Take(); });
}

}  // namespace

void BindEndpoint(nb::module_& module) {
  BindIdentity(module);
  BindCompletions(module);
  BindRegions(module);
  BindConnection(module);
  nb::class_<HeldHost>(module, "CoreEndpoint")
      .def_static("create", &CreateEndpoint, nb::arg("token").none(), nb::arg("job"), nb::arg("role"),
                  nb::arg("rank"), nb::arg("settings"))
      .def_prop_ro("identity",
                   [](HeldHost& self) { return self.host->With([](Endpoint& one) { return one.self(); }); })
      .def_prop_ro(
          "addresses",
          [](HeldHost& self) { return self.host->With([](Endpoint& one) { return one.Addresses(); }); })
      .def("register", &Register, nb::arg("address"), nb::arg("bytes"), nb::arg("array"), nb::arg("writable"),
           nb::arg("access"), nb::arg("device") = -1)
      .def("connect", &Connect, nb::arg("addresses"), nb::arg("role"), nb::arg("rank"),
           nb::arg("incarnation"), nb::arg("timeout").none())
      .def("accept", &Accept, nb::arg("timeout").none())
      .def("try_accept", &TryAccept)
      .def("watch",
           [](HeldHost& self, uint64_t what, const HeldCompletions& held, uint64_t number) {
             self.host->Check();
             self.host->events().Watch(what, {held.queue, number});
           })
      .def("unwatch",
           [](HeldHost& self, uint64_t what, const HeldCompletions& held, uint64_t number) {
             if (!self.host->keeper()->forked()) self.host->events().Unwatch(what, {held.queue, number});
           })
      .def_prop_ro(
          "kept", [](HeldHost& self) { return self.host->keeper()->size(); },
          "Transfers and regions that were dropped and whose memory is still in use; for tests.")
      .def("connection_map", &ConnectionMap)
      .def("close", &CloseEndpoint);
}

}  // namespace weightcast::bindings
