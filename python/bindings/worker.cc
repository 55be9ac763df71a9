#include "weightcast/worker.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <variant>

#include "control/token.h"
#include "support.h"
#include "worker/registration.h"

namespace weightcast::bindings {
namespace {

using StringMap = std::map<std::string, std::string>;

using CommitGroup = std::map<std::string, uint32_t>;

template <typename Worker>
Held<Worker> ConnectWorker(std::string controller, uint32_t rank, uint32_t world_size, std::string model,
                           CommitGroup commit_group, std::string engine, StringMap settings) {
  WorkerOptions options{.controller = std::move(controller),
                        .rank = rank,
                        .world_size = world_size,
                        .model = std::move(model),
                        .commit_group = std::move(commit_group),
                        .engine = std::move(engine),
                        .settings = std::move(settings),
                        .interrupted = Interrupted};
  return Held<Worker>(ValueOrThrow(CallUnlocked([&] { return Worker::Connect(std::move(options)); })));
}

/// `part`: (offset, size) of a box, or (index of the mesh, placements) where the dimension -1 replicates.
using PartTuple = std::variant<std::tuple<Shape, Shape>, std::tuple<uint32_t, std::vector<int>>>;

Part PartOf(PartTuple part) {
  if (auto* box = std::get_if<std::tuple<Shape, Shape>>(&part))
    return Box{std::move(std::get<0>(*box)), std::move(std::get<1>(*box))};
  const auto& [mesh, dims] = std::get<std::tuple<uint32_t, std::vector<int>>>(part);
  Placed placed{.mesh = mesh};
  for (const int dim : dims)
    placed.placements.push_back(dim == -1 ? Placement(Replicate{}) : Placement(Cut{dim}));
  return placed;
}

LandingMode LandingOf(const std::string& name, const std::string& whose = "") {
  if (name == "in_place") return LandingMode::kInPlace;
  if (name == "shadow") return LandingMode::kShadow;
  if (name == "loader") return LandingMode::kLoader;
  throw StatusError(
      {Code::kInvalidArgument, whose + "landing is '" + name + "'; allowed: in_place, shadow, loader"});
}

TensorInfo TensorOf(std::string name, const std::string& dtype, Shape shape, const std::string& whose = "") {
  const auto known = DTypeFromName(dtype);
  if (!known)
    throw StatusError({Code::kInvalidArgument, whose + "tensor " + name + ": unknown dtype " + dtype +
                                                   "; give a name of the safetensors format, such as BF16"});
  return {std::move(name), *known, std::move(shape)};
}

/// `first`: the lowest address of the elements; `bytes`: to the end of the highest; `offset`: of the element
/// at the part's origin.
Shard MakeShard(std::string name, const std::string& dtype, Shape shape, PartTuple part, uintptr_t first,
                uint64_t bytes, uint64_t offset, std::vector<int64_t> strides, bool declared,
                const std::string& landing, int device) {
  Shard shard;
  shard.tensor = TensorOf(std::move(name), dtype, std::move(shape));
  shard.part = PartOf(std::move(part));
  shard.memory = MemoryAt(first, bytes, device);
  shard.offset = offset;
  shard.strides = std::move(strides);
  shard.declared = declared;
  if (!landing.empty()) shard.landing = LandingOf(landing, "tensor " + shard.tensor.name + ": ");
  return shard;
}

/// `call`: None, or what takes a version and returns "" or what went wrong. It must outlive the registration.
std::function<Status(const Version&)> SwitchBy(nb::handle call) {
  if (call.is_none()) return {};
  return [call](const Version& version) -> Status {
    const InterpreterUse use(/*has_gil=*/false);
    const nb::gil_scoped_acquire gil;
    auto wrong = nb::cast<std::string>(call(version));
    return wrong.empty() ? Status::Ok() : Status(Code::kCancelled, std::move(wrong));
  };
}

/// Name, dtype, shape, offset and size of the box, digest in hexadecimal digits.
using DigestTuple = std::tuple<std::string, std::string, Shape, Shape, Shape, std::string>;

std::vector<DigestTuple> TuplesOf(Digests digests) {
  std::vector<DigestTuple> tuples;
  for (ShardDigest& one : digests)
    tuples.emplace_back(std::move(one.tensor.name), NameOf(one.tensor.dtype), std::move(one.tensor.shape),
                        std::move(one.box.offset), std::move(one.box.size), one.digest.ToString());
  return tuples;
}

Digests DigestsOf(std::vector<DigestTuple> tuples, const std::string& whose) {
  Digests digests;
  for (auto& [name, dtype, shape, offset, size, digest] : tuples) {
    TensorInfo tensor = TensorOf(std::move(name), dtype, std::move(shape), whose);
    const auto parsed = TensorDigest::FromString(digest);
    if (!parsed.ok())
      throw StatusError(
          {Code::kInvalidArgument, whose + "tensor " + tensor.name + ": " + parsed.status().message()});
    digests.push_back(
        {.tensor = std::move(tensor), .box = {std::move(offset), std::move(size)}, .digest = *parsed});
  }
  return digests;
}

StringMap CombineTuples(std::vector<std::vector<DigestTuple>> ranks) {
  std::vector<Digests> digests;
  for (auto& rank : ranks)
    digests.push_back(DigestsOf(std::move(rank), "rank " + std::to_string(digests.size()) + ": "));
  StringMap combined;
  for (const auto& [name, digest] : ValueOrThrow(CombineDigests(digests)))
    combined.emplace(name, digest.ToString());
  return combined;
}

void BindValues(nb::module_& module) {
  nb::class_<Shard>(module, "CoreShard")
      .def("__init__",
           [](Shard* self, std::string name, const std::string& dtype, Shape shape, PartTuple part,
              uintptr_t first, uint64_t bytes, uint64_t offset, std::vector<int64_t> strides, bool declared,
              const std::string& landing, int device) {
             new (self) Shard(MakeShard(std::move(name), dtype, std::move(shape), std::move(part), first,
                                        bytes, offset, std::move(strides), declared, landing, device));
           });
  nb::class_<Registration>(module, "CoreRegistration")
      .def("__init__",
           [](Registration* self, std::vector<Shard> shards, const std::vector<std::vector<uint32_t>>& meshes,
              std::vector<std::vector<uint32_t>> coordinates) {
             new (self) Registration{.shards = std::move(shards), .coordinates = std::move(coordinates)};
             for (const auto& sizes : meshes) self->meshes.push_back({sizes});
           })
      .def("part_sizes",
           [](const Registration& self) {
             std::vector<Shape> sizes;
             for (const Shard& shard : ValueOrThrow(worker::ResolveShards(self)))
               sizes.push_back(std::get<Box>(shard.part).size);
             return sizes;
           })
      .def("layout_bytes", [](const Registration& self) { return BytesOf(ValueOrThrow(LayoutBytes(self))); });
  nb::class_<RankStats>(module, "RankStats", "How one sender or receiver of an update fared.")
      .def_ro("name", &RankStats::name)
      .def_ro("bytes", &RankStats::bytes)
      .def_ro("seconds", &RankStats::seconds)
      .def_ro("compared", &RankStats::compared,
              "Receivers with the setting compare: tensors whose digests are those of their sources.");
  nb::class_<RouteStats>(module, "RouteStats", "All that went from one trainer to one inference rank.")
      .def_ro("sender", &RouteStats::sender)
      .def_ro("receiver", &RouteStats::receiver)
      .def_ro("bytes", &RouteStats::bytes)
      .def_ro("seconds", &RouteStats::seconds, "From the receiver's grant until the last byte was there.");
  nb::class_<EngineStats>(module, "EngineStats")
      .def_ro("engine", &EngineStats::engine)
      .def_ro("committed", &EngineStats::committed)
      .def_ro("reason", &EngineStats::reason, "Why it did not commit.")
      .def_prop_ro(
          "rank",
          [](const EngineStats& stats) { return stats.rank < 0 ? std::nullopt : std::optional(stats.rank); },
          "Of the engine, the one to blame; None: none of its.");
  nb::class_<UpdateStats>(module, "UpdateStats")
      .def_ro("version", &UpdateStats::version)
      .def_ro("seconds", &UpdateStats::seconds, "From the first grant request until every rank was ready.")
      .def_ro("bytes", &UpdateStats::bytes, "Received by all ranks together.")
      .def_ro("senders", &UpdateStats::senders)
      .def_ro("receivers", &UpdateStats::receivers)
      .def_ro("routes", &UpdateStats::routes)
      .def_ro("engines", &UpdateStats::engines)
      .def_prop_ro(
          "gb_per_s",
          [](const UpdateStats& stats) {
            return stats.seconds > 0 ? static_cast<double>(stats.bytes) / stats.seconds / 1e9 : 0.0;
          },
          "10^9 bytes a second over all receivers.");
  nb::class_<EngineStatus>(module, "EngineState")
      .def_ro("name", &EngineStatus::name)
      .def_ro("incarnation", &EngineStatus::incarnation,
              "Of its rank 0: another once that process was started again; 0: not here.")
      .def_prop_ro("state", [](const EngineStatus& engine) { return std::string(NameOf(engine.state)); })
      .def_ro("version", &EngineStatus::version)
      .def_ro("last_error", &EngineStatus::last_error);
}

using HeldTrainer = Held<Trainer>;
using HeldInference = Held<Inference>;
using HeldControl = Held<EngineControl>;
using HeldController = Held<Controller>;

void BindTrainer(nb::module_& module) {
  nb::class_<Update>(module, "CoreUpdate")
      .def_prop_ro("version", &Update::version)
      .def("wait_sources", Unlocked<Update>(&Update::WaitSources))
      .def("wait", Unlocked<Update>(&Update::Wait))
      .def("engines", &Update::Engines, nb::call_guard<GilRelease>())
      .def("explain",
           [](const Update& self, double timeout) {
             return ValueOrThrow(CallUnlocked([&] { return self.Explain(In(timeout)); }));
           })
      .def("cancel", &Update::Cancel, nb::call_guard<GilRelease>());

  nb::class_<HeldTrainer>(module, "CoreTrainer")
      .def_static("connect", &ConnectWorker<Trainer>)
      .def("register",
           [](HeldTrainer& self, const Registration& registration, const std::string& rules) {
             const NameRules parsed = rules.empty() ? NameRules{} : ValueOrThrow(ParseRules(rules));
             ThrowIfError(CallUnlocked([&] { return self->Register(registration, {.rules = parsed}); }));
           })
      .def("publish",
           [](HeldTrainer& self, int64_t number, bool hold, std::string label,
              const std::vector<std::pair<int, uintptr_t>>& streams) {
             std::vector<StreamRef> refs;
             for (const auto& [device, stream] : streams) {
               // NOLINTNEXTLINE(performance-no-int-to-ptr)
               refs.push_back({.device = device, .stream = reinterpret_cast<void*>(stream)});
             }
             return ValueOrThrow(CallUnlocked([&] {
               return self->Publish(number, hold ? Hold::kUntilNext : Hold::kUntilReady, std::move(label),
                                    refs);
             }));
           })
      .def("announce",
           [](HeldTrainer& self, int64_t number, bool hold, std::string label) {
             return ValueOrThrow(CallUnlocked([&] {
               return self->Announce(number, hold ? Hold::kUntilNext : Hold::kUntilReady, std::move(label));
             }));
           })
      .def("digest",
           [](HeldTrainer& self) {
             return TuplesOf(ValueOrThrow(CallUnlocked([&] { return self->Digest(); })));
           })
      .def("engines", Unlocked(&Trainer::Engines))
      .def("connection_map",
           [](HeldTrainer& self) { return CallUnlocked([&] { return self->ConnectionMap(); }); })
      .def("close", Unlocked(&Trainer::Close));
}

void BindInference(nb::module_& module) {
  nb::class_<HeldInference>(module, "CoreInference")
      .def_static("connect", &ConnectWorker<Inference>)
      .def("offered",
           [](HeldInference& self, double timeout) {
             std::vector<std::tuple<std::string, std::string, Shape>> tensors;
             for (TensorInfo& tensor : ValueOrThrow(CallUnlocked([&] { return self->Offered(In(timeout)); })))
               tensors.emplace_back(std::move(tensor.name), NameOf(tensor.dtype), std::move(tensor.shape));
             return tensors;
           })
      .def(
          "register",
          [](HeldInference& self, const Registration& registration, const std::string& landing, bool shares,
             nb::handle on_switch, std::vector<std::string> unwanted, std::vector<std::string> not_sent,
             std::vector<std::vector<std::string>> groups) {
            const LandingOptions options{.landing = LandingOf(landing),
                                         .shares = shares,
                                         .on_switch = SwitchBy(on_switch),
                                         .unwanted = std::move(unwanted),
                                         .not_sent = std::move(not_sent),
                                         .groups = std::move(groups)};
            ThrowIfError(CallUnlocked([&] { return self->Register(registration, options); }));
          },
          nb::arg("registration"), nb::arg("landing"), nb::arg("shares"), nb::arg("on_switch").none(),
          nb::arg("unwanted"), nb::arg("not_sent"), nb::arg("groups"))
      .def("wait", Unlocked(&Inference::Wait))
      .def("begin", Unlocked(&Inference::Begin))
      .def("receive", Unlocked(&Inference::Receive))
      .def("receive_group",
           [](HeldInference& self, double timeout) {
             ReceivedGroup group =
                 ValueOrThrow(CallUnlocked([&] { return self->ReceiveGroup(In(timeout)); }));
             return std::tuple(std::move(group.version), group.group, group.last);
           })
      .def("commit", Unlocked(&Inference::Commit))
      .def("served", Unlocked(&Inference::Served))
      .def("finish", Unlocked(&Inference::Finish))
      .def("abort", Unlocked(&Inference::Abort))
      .def("suspend", Unlocked(&Inference::Suspend))
      .def("resume",
           [](HeldInference& self, bool intact) {
             ThrowIfError(
                 CallUnlocked([&] { return self->Resume(intact ? Contents::kIntact : Contents::kLost); }));
           })
      .def("digest",
           [](HeldInference& self) {
             return TuplesOf(ValueOrThrow(CallUnlocked([&] { return self->Digest(); })));
           })
      .def_prop_ro("version", [](HeldInference& self) { return self->version(); })
      .def_prop_ro("state", [](HeldInference& self) { return std::string(NameOf(self->state())); })
      .def("check", [](HeldInference& self) { ThrowIfError(self->last_error()); })
      .def("describe", [](HeldInference& self) { return self->Describe(); })
      .def("connection_map",
           [](HeldInference& self) { return CallUnlocked([&] { return self->ConnectionMap(); }); })
      .def("close", Unlocked(&Inference::Close));
}

void BindEngineControl(nb::module_& module) {
  nb::enum_<EngineControl::Command>(module, "CoreCommand")
      .value("PAUSE", EngineControl::Command::kPause)
      .value("ACTIVATE", EngineControl::Command::kActivate)
      .value("RESUME", EngineControl::Command::kResume)
      .value("DRAIN", EngineControl::Command::kDrain);
  nb::class_<EngineControl::Order>(module, "CoreOrder")
      .def_ro("command", &EngineControl::Order::command)
      .def_ro("version", &EngineControl::Order::version)
      .def_ro("reason", &EngineControl::Order::reason);
  nb::class_<HeldControl>(module, "CoreEngineControl")
      .def_static("connect", &ConnectWorker<EngineControl>)
      .def("next", Unlocked(&EngineControl::Next))
      .def("answer",
           [](HeldControl& self, const EngineControl::Order& order, const std::string& error) {
             const GilRelease release;
             self->Answer(order, error.empty() ? Status::Ok() : Status(Code::kUnavailable, error));
           })
      .def("close", Unlocked(&EngineControl::Close));
}

void BindController(nb::module_& module) {
  nb::class_<HeldController>(module, "CoreController")
      .def_static(
          "start",
          [](std::string listen, StringMap settings, std::string http) {
            return HeldController(ValueOrThrow(CallUnlocked([&] {
              return Controller::Start(
                  {.listen = std::move(listen), .settings = std::move(settings), .http = std::move(http)});
            })));
          })
      .def_prop_ro("address", [](HeldController& self) { return self->address(); })
      .def_prop_ro("http_address", [](HeldController& self) { return self->http_address(); })
      .def("stop", Unlocked(&Controller::Stop));
}

}  // namespace

void BindWorker(nb::module_& module) {
  BindValues(module);
  BindTrainer(module);
  BindInference(module);
  BindEngineControl(module);
  BindController(module);
  module.def("combine_digests", &CombineTuples);
  module.def("set_log_level", [](const std::string& level) { ThrowIfError(SetLogLevelByName(level)); });
  module.def(
      "job_token",
      [] {
        const auto token = ValueOrThrow(control::LoadToken(ValueOrThrow(Settings::From({}))));
        return nb::make_tuple(BytesOf(ValueOrThrow(token.SharedKey(stream::Purpose::kQueue))),
                              token.configured());
      },
      "The rollout queue's key, of the job's token or a role's, and whether the token is configured; "
      "otherwise it\n"
      "is the user's own, for loopback only.");
}

}  // namespace weightcast::bindings
