#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "control/token.h"
#include "p2p/engine.h"
#include "support.h"

// What weightcast/p2p.py stands on. Addresses are numbers, as its callers have them.
namespace weightcast::bindings {
namespace {

using p2p::Advert;
using p2p::Engine;
using p2p::EngineMetadata;
using p2p::Gpu;
using p2p::LocalSlice;
using HeldEngine = Held<Engine>;
using Piece3 = std::tuple<uint64_t, uintptr_t, uint64_t>;  ///< Memory, address, length.

std::string_view View(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
std::byte* At(uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::vector<LocalSlice> LocalsOf(const std::vector<Piece3>& pieces) {
  std::vector<LocalSlice> locals;
  locals.reserve(pieces.size());
  for (const auto& [memory, address, length] : pieces) locals.push_back({memory, At(address), length});
  return locals;
}

std::vector<Advert> AdvertsOf(const std::vector<nb::bytes>& blobs) {
  std::vector<Advert> adverts;
  adverts.reserve(blobs.size());
  for (const nb::bytes& blob : blobs) {
    const auto advert = p2p::ParseAdvert(View(blob));
    const std::string place = blobs.size() > 1 ? "piece " + std::to_string(adverts.size()) + ": " : "";
    if (!advert.ok()) throw StatusError({advert.status().code(), place + advert.status().message()});
    adverts.push_back(*advert);
  }
  return adverts;
}

TimePoint In(double seconds) { return Clock::now() + FromSeconds(std::min(seconds, 1e9)); }

/// The one in which the calling thread works. Without the GIL.
Result<StreamRef> StreamOf(int device) {
  const InterpreterUse use(/*has_gil=*/false);
  const nb::gil_scoped_acquire gil;
  try {
    return StreamsOf({device}, nb::none()).front();
  } catch (const nb::python_error& error) {
    return Status(Code::kInternal, error.what());
  }
}

/// The job's token where one is set; otherwise the user's own, and this machine only.
HeldEngine CreateEngine(int32_t index, std::string label, uint32_t rank,
                        const std::map<std::string, std::string>& overrides) {
  p2p::EngineOptions options;
  options.gpu = {.index = index, .label = std::move(label)};
  options.rank = rank;
  options.stream_of = StreamOf;
  options.settings = ValueOrThrow(Settings::From(overrides));
  const auto token = ValueOrThrow(control::LoadToken(options.settings));
  options.token = token.text();
  if (!token.configured() && options.settings.bind.empty()) options.settings.bind = "127.0.0.1";
  return HeldEngine(ValueOrThrow(CallUnlocked([&] { return Engine::Create(std::move(options)); })));
}

using Operate = Result<uint64_t> (Engine::*)(uint64_t, std::span<const LocalSlice>);
using OperateOn = Result<uint64_t> (Engine::*)(uint64_t, std::span<const LocalSlice>,
                                               std::span<const Advert>);

template <Operate operate>
uint64_t Begin(HeldEngine& self, uint64_t channel, const std::vector<Piece3>& pieces) {
  const auto locals = LocalsOf(pieces);
  return ValueOrThrow(CallUnlocked([&] { return ((*self).*operate)(channel, locals); }));
}

template <OperateOn operate>
uint64_t BeginOn(HeldEngine& self, uint64_t channel, const std::vector<Piece3>& pieces,
                 const std::vector<nb::bytes>& blobs) {
  const auto locals = LocalsOf(pieces);
  const auto adverts = AdvertsOf(blobs);
  return ValueOrThrow(CallUnlocked([&] { return ((*self).*operate)(channel, locals, adverts); }));
}

nb::tuple TupleOf(const EngineMetadata& metadata) {
  return nb::make_tuple(metadata.addresses, metadata.gpu.label, metadata.gpu.index);
}

void BindChannels(nb::class_<HeldEngine>& engine) {
  engine.def("metadata", [](HeldEngine& self) { return BytesOf(p2p::Encode(self->metadata())); })
      .def("connect",
           [](HeldEngine& self, const std::string& host, uint16_t port, bool by_index, double timeout) {
             return ValueOrThrow(
                 CallUnlocked([&] { return self->Connect(host, port, by_index, In(timeout), Interrupted); }));
           })
      .def("connect_to",
           [](HeldEngine& self, const nb::bytes& blob, bool by_index, double timeout) {
             const auto peer = ValueOrThrow(p2p::ParseMetadata(View(blob)));
             return ValueOrThrow(
                 CallUnlocked([&] { return self->Connect(peer, by_index, In(timeout), Interrupted); }));
           })
      .def("shared",
           [](HeldEngine& self, const nb::bytes& blob, double timeout) {
             const auto peer = ValueOrThrow(p2p::ParseMetadata(View(blob)));
             return ValueOrThrow(CallUnlocked([&] { return self->Shared(peer, In(timeout), Interrupted); }));
           })
      .def("accept",
           [](HeldEngine& self) {
             const auto accepted =
                 ValueOrThrow(CallUnlocked([&] { return self->Accept(std::nullopt, Interrupted); }));
             const nb::object gpu =
                 accepted.gpu.by_index ? nb::cast(accepted.gpu.index) : nb::cast(accepted.gpu.label);
             return nb::make_tuple(accepted.host, accepted.gpu.index, gpu, accepted.channel);
           })
      .def("close_channel", Unlocked(&Engine::CloseChannel))
      .def("has_channel", [](HeldEngine& self, uint64_t channel) { return self->HasChannel(channel); })
      .def("channel_to", [](HeldEngine& self, uint32_t rank) { return self->ChannelTo(rank); });
}

void BindMemoryAndOperations(nb::class_<HeldEngine>& engine) {
  engine
      .def("register",
           [](HeldEngine& self, uintptr_t address, size_t length) {
             return ValueOrThrow(CallUnlocked([&] { return self->Register({At(address), length}); }));
           })
      .def("deregister", Unlocked(&Engine::Deregister))
      .def("advertise",
           [](HeldEngine& self, uint64_t memory, uintptr_t address, size_t length) {
             return BytesOf(p2p::Encode(
                 ValueOrThrow(CallUnlocked([&] { return self->Advertise({memory, At(address), length}); }))));
           })
      .def("send", &Begin<&Engine::Send>)
      .def("recv", &Begin<&Engine::Receive>)
      .def("write", &BeginOn<&Engine::Write>)
      .def("read", &BeginOn<&Engine::Read>)
      .def("poll",
           [](HeldEngine& self, uint64_t operation) {
             const auto end = CallUnlocked([&] { return self->Poll(operation); });
             if (end) ThrowIfError(*end);
             return end.has_value();
           })
      .def("wait", [](HeldEngine& self, uint64_t operation) {
        ThrowIfError(CallUnlocked([&] { return self->Wait(operation, Interrupted); }));
      });
}

}  // namespace

void BindP2p(nb::module_& module) {
  nb::class_<HeldEngine> engine(module, "P2pEngine");
  engine.def_static("create", &CreateEngine, nb::arg("index"), nb::arg("label"), nb::arg("rank"),
                    nb::arg("settings"));
  BindChannels(engine);
  BindMemoryAndOperations(engine);
  module.def("p2p_parse_metadata",
             [](const nb::bytes& blob) { return TupleOf(ValueOrThrow(p2p::ParseMetadata(View(blob)))); });
  module.def("p2p_parse_advert", [](const nb::bytes& blob) {
    const Advert advert = ValueOrThrow(p2p::ParseAdvert(View(blob)));
    return nb::make_tuple(advert.address, advert.length, advert.memory);
  });
  module.def("p2p_join_adverts",
             [](const std::vector<nb::bytes>& blobs) { return BytesOf(p2p::Encode(AdvertsOf(blobs))); });
  module.def("p2p_split_adverts", [](const nb::bytes& blob) {
    nb::list blobs;
    for (const Advert& advert : ValueOrThrow(p2p::ParseAdverts(View(blob))))
      blobs.append(BytesOf(p2p::Encode(advert)));
    return blobs;
  });
}

}  // namespace weightcast::bindings
