#include "peertest/messages.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "base/json.h"
#include "base/strings.h"

namespace weightcast::peertest {

namespace {

using Json = nlohmann::json;

/// Keeps what `value` is where there is no such member. Throws what nlohmann throws, and where an integer is
/// none or does not fit: nlohmann would change it, from a floating-point number with undefined behaviour.
template <typename T>
void Take(const Json& json, const char* name, T& value) {
  if (!json.is_object()) throw Json::other_error::create(501, "not an object", nullptr);
  const auto member = json.find(name);
  if (member == json.end()) return;
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const bool fits = member->is_number_unsigned()
                          ? std::in_range<T>(member->get<uint64_t>())
                          : member->is_number_integer() && std::in_range<T>(member->get<int64_t>());
    if (!fits) throw Json::other_error::create(501, "not an integer of this field", nullptr);
  }
  member->get_to(value);
}

}  // namespace

// As nlohmann's macro for types with defaults, but by Take.
#define WC_TAKE(name) Take(nlohmann_json_j, #name, nlohmann_json_t.name);
#define WC_JSON_FIELDS(Type, ...)                                             \
  static void to_json(Json& nlohmann_json_j, const Type& nlohmann_json_t) {   \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__))  \
  }                                                                           \
  static void from_json(const Json& nlohmann_json_j, Type& nlohmann_json_t) { \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(WC_TAKE, __VA_ARGS__))           \
  }

WC_JSON_FIELDS(HostReport, weightcast, wire, host, boot_id, instance, address, interface, mtu, mbit, rdma,
               rdma_remedy, unix_seconds)
WC_JSON_FIELDS(Latency, samples, lost, p50, p99, most, jitter, jitter_p50)
WC_JSON_FIELDS(PortCount, name, packets, repeats)
WC_JSON_FIELDS(Rate, bytes, transfers, gbit)
WC_JSON_FIELDS(PathMtu, error, out, back, announced)
WC_JSON_FIELDS(Ports, out, back, tried_out, tried_back)
WC_JSON_FIELDS(TransportFacts, name, skipped, error, connection, latency, device, device_error, out, back,
               both_out, both_back, sent_here, sent_there)
WC_JSON_FIELDS(ClassFacts, error, traffic_class, chosen, plain_idle, class_idle, plain_loaded, class_loaded,
               plain_marked, class_marked)
WC_JSON_FIELDS(Failure, stage, text)
WC_JSON_FIELDS(PeerFacts, target, failure, here, there, connect_seconds, clock_ahead, clock_within, mtu,
               ports, transports, classes)
WC_JSON_FIELDS(TestPlan, seconds, all_sizes, classes)
WC_JSON_FIELDS(LinkPlace, addresses, incarnation, descriptor)
WC_JSON_FIELDS(AskHello, report, peer)
WC_JSON_FIELDS(AskBegin, address)
WC_JSON_FIELDS(AskReach, addresses)
WC_JSON_FIELDS(AskOpen, transport, key, traffic_class)
WC_JSON_FIELDS(AskMeet, place, connect)
WC_JSON_FIELDS(AskPong, count)
WC_JSON_FIELDS(AskWrite, bytes, seconds)
WC_JSON_FIELDS(AskOrder, target, plan)
WC_JSON_FIELDS(AskPiece, from)
WC_JSON_FIELDS(Hello, report)
WC_JSON_FIELDS(Time, unix_seconds)
WC_JSON_FIELDS(Echo, error, port, key)
WC_JSON_FIELDS(Reached, errors)
WC_JSON_FIELDS(Opened, place)
WC_JSON_FIELDS(Wrote, rate)
WC_JSON_FIELDS(Ordered, bytes)
WC_JSON_FIELDS(ReportPiece, text)
WC_JSON_FIELDS(Counters, ports)
WC_JSON_FIELDS(AskDeviceMeet, place)
WC_JSON_FIELDS(AskDevicePong, count)
WC_JSON_FIELDS(DevicePlace, place)

// Those without members.
template <typename T>
  requires std::is_empty_v<T>
static void to_json(Json& json, const T& /*one*/) {
  json = Json::object();
}
template <typename T>
  requires std::is_empty_v<T>
static void from_json(const Json& /*json*/, T& /*one*/) {}

namespace {

constexpr size_t kMostText = 256;
constexpr size_t kMostError = 1024;
constexpr size_t kMostAddresses = 16;
constexpr size_t kMostDescriptor = 8192;
constexpr size_t kMostPorts = 64;

/// In the order of the variants.
constexpr std::array<const char*, std::variant_size_v<Request>> kRequests = {
    "hello", "time", "begin", "reach", "open",     "meet",   "pong",        "write",
    "shut",  "end",  "order", "piece", "counters", "device", "device_meet", "device_pong"};
constexpr std::array<const char*, std::variant_size_v<Reply>> kReplies = {
    "done", "hello", "time", "echo", "reached", "opened", "wrote", "ordered", "piece", "counters", "device"};

template <typename Variant>
std::string EncodeAs(const char* member, const char* name, const Variant& value) {
  Json json{{member, name}};
  std::visit([&](const auto& one) { json["with"] = one; }, value);
  return JsonText(json);
}

template <typename Variant, size_t... kIndex>
Variant DecodeAs(size_t index, const Json& with, std::index_sequence<kIndex...> /*all*/) {
  Variant value;
  ((index == kIndex ? (value = with.get<std::variant_alternative_t<kIndex, Variant>>(), 0) : 0), ...);
  return value;
}

/// Throws what nlohmann throws.
template <typename Variant, typename Names>
Variant Decode(const char* member, const Names& names, const Json& json) {
  const auto name = json.at(member).get<std::string>();
  const auto found = std::ranges::find_if(names, [&](const char* one) { return name == one; });
  if (found == names.end()) throw Json::other_error::create(501, "unknown message", nullptr);
  return DecodeAs<Variant>(static_cast<size_t>(found - names.begin()), json.at("with"),
                           std::make_index_sequence<std::variant_size_v<Variant>>());
}

/// For text that is shown to a person.
void Clean(std::string& text, size_t limit = kMostText) {
  if (text.size() > limit) text.resize(limit);
  if (!IsUtf8(text)) std::ranges::replace_if(text, [](char c) { return (c & 0x80) != 0; }, '?');
  std::ranges::replace_if(text, [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
}

void Clean(HostReport& report) {
  for (std::string* text : {&report.weightcast, &report.host, &report.boot_id, &report.instance,
                            &report.address, &report.interface, &report.rdma, &report.rdma_remedy})
    Clean(*text);
}

bool IsSane(const std::vector<std::string>& texts) {
  return texts.size() <= kMostAddresses && std::ranges::all_of(texts, [](const auto& one) {
           return one.size() <= kMostError && IsPrintable(one);
         });
}

bool IsSane(const std::vector<PortCount>& ports) {
  return ports.size() <= kMostPorts && std::ranges::all_of(ports, [](const PortCount& one) {
           return one.name.size() <= kMostText && IsPrintable(one.name) && one.packets >= 0 &&
                  one.repeats >= 0;
         });
}

bool IsSane(const LinkPlace& place) {
  return IsSane(place.addresses) && place.incarnation != 0 && place.descriptor.size() <= kMostDescriptor;
}

struct Sane {
  bool operator()(AskHello& one) const {
    Clean(one.report);
    return one.peer.size() <= kMostText && IsPrintable(one.peer);
  }
  bool operator()(const AskBegin& one) const {
    return one.address.size() <= kMostText && IsPrintable(one.address);
  }
  bool operator()(const AskReach& one) const { return IsSane(one.addresses); }
  bool operator()(const AskOpen& one) const {
    return (one.transport == "tcp" || one.transport == "verbs") && one.key.size() <= kMostText &&
           one.traffic_class >= kUnknown && one.traffic_class <= 255;
  }
  bool operator()(const AskMeet& one) const { return IsSane(one.place); }
  bool operator()(const AskPong& one) const { return one.count > 0 && one.count <= kMostPings; }
  bool operator()(const AskDeviceMeet& one) const { return one.place.size() <= kMostDescriptor; }
  bool operator()(const AskDevicePong& one) const { return one.count > 0 && one.count <= kMostPings; }
  bool operator()(const DevicePlace& one) const { return one.place.size() <= kMostDescriptor; }
  bool operator()(const AskWrite& one) const {
    return one.bytes > 0 && one.bytes <= kMostWrite && one.seconds > 0 && one.seconds <= kMostSeconds;
  }
  bool operator()(const AskOrder& one) const {
    return one.target.size() <= kMostText && IsPrintable(one.target) && one.plan.seconds > 0 &&
           one.plan.seconds <= kMostPlanSeconds;
  }
  bool operator()(const AskPiece& one) const { return one.from <= kMostReport; }
  bool operator()(Hello& one) const {
    Clean(one.report);
    return true;
  }
  bool operator()(Echo& one) const {
    Clean(one.error, kMostError);
    return one.port <= 65535 && one.key.size() <= kMostText;
  }
  bool operator()(const Reached& one) const { return IsSane(one.errors); }
  bool operator()(const Opened& one) const { return IsSane(one.place); }
  bool operator()(const Ordered& one) const { return one.bytes <= kMostReport; }
  bool operator()(const Counters& one) const { return IsSane(one.ports); }
  bool operator()(const ReportPiece& one) const { return one.text.size() <= kPieceBytes; }
  template <typename T>
  bool operator()(const T& /*one*/) const {
    return true;
  }
};

Status Malformed() {
  return {Code::kProtocol,
          "a message of this test is not one of `weightcast doctor`; use the same weightcast on both hosts"};
}

}  // namespace

std::string Encode(const Request& request) { return EncodeAs("ask", kRequests[request.index()], request); }

Result<Request> DecodeRequest(std::string_view body) {
  if (body.size() > kMostBody) return Malformed();
  const Json json = ParseJson(body);
  if (json.is_discarded()) return Malformed();
  try {
    auto request = Decode<Request>("ask", kRequests, json);
    if (std::visit(Sane(), request)) return request;
  } catch (const Json::exception&) {
  }
  return Malformed();
}

std::string Encode(const Result<Reply>& reply) {
  if (reply.ok()) return EncodeAs("reply", kReplies[reply->index()], *reply);
  Json json{{"error", static_cast<int>(reply.status().code())}, {"text", reply.status().message()}};
  return JsonText(json);
}

Result<Reply> DecodeReply(std::string_view body) {
  if (body.size() > kMostBody) return Malformed();
  const Json json = ParseJson(body);
  if (json.is_discarded()) return Malformed();
  try {
    if (json.contains("error")) {
      int code = 0;
      Take(json, "error", code);
      std::string text = json.at("text").get<std::string>();
      Clean(text, kMostError);
      if (code <= 0 || code > static_cast<int>(Code::kInternal)) return Malformed();
      return Status(static_cast<Code>(code), text);
    }
    auto reply = Decode<Reply>("reply", kReplies, json);
    if (std::visit(Sane(), reply)) return reply;
  } catch (const Json::exception&) {
  }
  return Malformed();
}

// ASCII alone, so that it can be cut anywhere.
std::string Encode(const PeerFacts& facts) { return JsonText(Json(facts), -1, JsonCharacters::kAscii); }

Result<PeerFacts> DecodeFacts(std::string_view json) {
  if (json.size() > kMostReport) return Malformed();
  const Json report = ParseJson(json);
  if (report.is_discarded()) return Malformed();
  try {
    auto facts = report.get<PeerFacts>();
    for (std::string* text :
         {&facts.target, &facts.failure.stage, &facts.failure.text, &facts.mtu.error, &facts.classes.error})
      Clean(*text, kMostError);
    Clean(facts.here);
    Clean(facts.there);
    for (auto* list : {&facts.ports.out, &facts.ports.back})
      for (std::string& one : *list) Clean(one, kMostError);
    for (TransportFacts& one : facts.transports)
      for (std::string* text : {&one.name, &one.skipped, &one.error, &one.connection, &one.device_error})
        Clean(*text, kMostError);
    for (TransportFacts& one : facts.transports)
      for (auto* ports : {&one.sent_here, &one.sent_there})
        for (PortCount& port : *ports) Clean(port.name);
    return facts;
  } catch (const Json::exception&) {
    return Malformed();
  }
}

}  // namespace weightcast::peertest
