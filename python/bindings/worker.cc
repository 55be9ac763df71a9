#include "weightcast/worker.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "support.h"

namespace weightcast::bindings {
namespace {

using StringMap = std::map<std::string, std::string>;

WorkerOptions OptionsOf(std::string controller, uint32_t rank, uint32_t world_size, std::string model,
                        std::string engine, StringMap settings) {
  return {.controller = std::move(controller),
          .rank = rank,
          .world_size = world_size,
          .model = std::move(model),
          .engine = std::move(engine),
          .settings = std::move(settings)};
}

Shard MakeShard(std::string name, const std::string& dtype, Shape shape, Shape offset, Shape size,
                uintptr_t data, std::vector<int64_t> strides, bool declared) {
  const auto known = DTypeFromName(dtype);
  if (!known) throw StatusError({Code::kInvalidArgument, "tensor " + name + ": unknown dtype " + dtype});
  Shard shard;
  shard.tensor = {std::move(name), *known, std::move(shape)};
  shard.box = {std::move(offset), std::move(size)};
  shard.data = reinterpret_cast<std::byte*>(data);  // NOLINT(performance-no-int-to-ptr)
  shard.strides = std::move(strides);
  shard.declared = declared;
  return shard;
}

LandingMode LandingOf(const std::string& name) {
  if (name == "in_place") return LandingMode::kInPlace;
  if (name == "shadow") return LandingMode::kShadow;
  throw StatusError({Code::kInvalidArgument, "landing is '" + name + "'; allowed: in_place, shadow"});
}

void BindValues(nb::module_& module) {
  nb::class_<Shard>(module, "CoreShard")
      .def("__init__", [](Shard* self, std::string name, const std::string& dtype, Shape shape, Shape offset,
                          Shape size, uintptr_t data, std::vector<int64_t> strides, bool declared) {
        new (self) Shard(MakeShard(std::move(name), dtype, std::move(shape), std::move(offset),
                                   std::move(size), data, std::move(strides), declared));
      });
  nb::class_<RankStats>(module, "RankStats", "How one sender or receiver of an update fared.")
      .def_ro("name", &RankStats::name)
      .def_ro("bytes", &RankStats::bytes)
      .def_ro("seconds", &RankStats::seconds);
  nb::class_<EngineStats>(module, "EngineStats")
      .def_ro("engine", &EngineStats::engine)
      .def_ro("committed", &EngineStats::committed)
      .def_ro("reason", &EngineStats::reason, "Why it did not commit.");
  nb::class_<UpdateStats>(module, "UpdateStats")
      .def_ro("version", &UpdateStats::version)
      .def_ro("seconds", &UpdateStats::seconds, "From the first grant request until every rank was ready.")
      .def_ro("bytes", &UpdateStats::bytes, "Received by all ranks together.")
      .def_ro("senders", &UpdateStats::senders)
      .def_ro("receivers", &UpdateStats::receivers)
      .def_ro("engines", &UpdateStats::engines)
      .def_prop_ro(
          "gb_per_s",
          [](const UpdateStats& stats) {
            return stats.seconds > 0 ? static_cast<double>(stats.bytes) / stats.seconds / 1e9 : 0.0;
          },
          "10^9 bytes a second over all receivers.");
  nb::class_<EngineStatus>(module, "EngineState")
      .def_ro("name", &EngineStatus::name)
      .def_ro("state", &EngineStatus::state)
      .def_ro("version", &EngineStatus::version)
      .def_ro("last_error", &EngineStatus::last_error);
}

void BindTrainer(nb::module_& module) {
  nb::class_<Update>(module, "CoreUpdate")
      .def_prop_ro("version", &Update::version)
      .def("wait_sources",
           [](Update& self, double timeout) {
             ThrowIfError(WaitInSlices(timeout, [&](double slice) { return self.WaitSources(slice); }));
           })
      .def("wait",
           [](Update& self, double timeout) {
             return ValueOrThrow(WaitInSlices(timeout, [&](double slice) { return self.Wait(slice); }));
           })
      .def("cancel", &Update::Cancel, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<Trainer>(module, "CoreTrainer")
      .def_static("connect",
                  [](std::string controller, uint32_t rank, uint32_t world_size, std::string model,
                     StringMap settings) {
                    auto options = OptionsOf(std::move(controller), rank, world_size, std::move(model), {},
                                             std::move(settings));
                    return ValueOrThrow(CallInterruptibly([options] { return Trainer::Connect(options); }));
                  })
      .def("register",
           [](Trainer& self, std::vector<Shard> shards, const std::string& rules) {
             const nb::gil_scoped_release release;
             ThrowIfError(self.Register(std::move(shards), rules));
           })
      .def("publish",
           [](Trainer& self, int64_t number, bool hold) {
             const nb::gil_scoped_release release;
             return ValueOrThrow(self.Publish(number, hold));
           })
      .def("engines",
           [](Trainer& self) {
             const nb::gil_scoped_release release;
             return ValueOrThrow(self.Engines());
           })
      .def("connection_map", &Trainer::ConnectionMap, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Trainer::Close, nb::call_guard<nb::gil_scoped_release>());
}

void BindInference(nb::module_& module) {
  nb::class_<Inference>(module, "CoreInference")
      .def_static("connect",
                  [](std::string controller, uint32_t rank, uint32_t world_size, std::string model,
                     std::string engine, StringMap settings) {
                    auto options = OptionsOf(std::move(controller), rank, world_size, std::move(model),
                                             std::move(engine), std::move(settings));
                    return ValueOrThrow(CallInterruptibly([options] { return Inference::Connect(options); }));
                  })
      .def("register",
           [](Inference& self, std::vector<Shard> shards, const std::string& landing) {
             const LandingMode mode = LandingOf(landing);
             const nb::gil_scoped_release release;
             ThrowIfError(self.Register(std::move(shards), mode));
           })
      .def("wait",
           [](Inference& self, Version newer_than, double timeout) {
             return ValueOrThrow(
                 WaitInSlices(timeout, [&](double slice) { return self.Wait(newer_than, slice); }));
           })
      .def("begin",
           [](Inference& self) {
             const nb::gil_scoped_release release;
             ThrowIfError(self.Begin());
           })
      .def("receive",
           [](Inference& self, double timeout) {
             return ValueOrThrow(WaitInSlices(timeout, [&](double slice) { return self.Receive(slice); }));
           })
      .def("finish",
           [](Inference& self, double timeout) {
             ThrowIfError(WaitInSlices(timeout, [&](double slice) { return self.Finish(slice); }));
           })
      .def("abort",
           [](Inference& self) {
             const nb::gil_scoped_release release;
             ThrowIfError(self.Abort());
           })
      .def_prop_ro("version", &Inference::version)
      .def_prop_ro("state", &Inference::state)
      .def("check", [](Inference& self) { ThrowIfError(self.last_error()); })
      .def("describe", &Inference::Describe, nb::call_guard<nb::gil_scoped_release>())
      .def("connection_map", &Inference::ConnectionMap, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &Inference::Close, nb::call_guard<nb::gil_scoped_release>());
}

void BindController(nb::module_& module) {
  nb::class_<Controller>(module, "CoreController")
      .def_static("start",
                  [](std::string listen, StringMap settings) {
                    const nb::gil_scoped_release release;
                    return ValueOrThrow(
                        Controller::Start({.listen = std::move(listen), .settings = std::move(settings)}));
                  })
      .def_prop_ro("address", &Controller::address)
      .def("stop", &Controller::Stop, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void BindWorker(nb::module_& module) {
  BindValues(module);
  BindTrainer(module);
  BindInference(module);
  BindController(module);
  module.def("set_log_level", [](const std::string& level) { ThrowIfError(SetLogLevelByName(level)); });
}

}  // namespace weightcast::bindings
