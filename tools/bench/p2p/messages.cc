#include "tools/bench/p2p/messages.h"

#include <algorithm>

#include "base/bytes.h"

namespace weightcast::tools {
namespace {

constexpr size_t kMaxName = 256;
constexpr size_t kMaxMetadata = 4096;
constexpr size_t kMaxDescriptor = 64 << 10;
constexpr uint32_t kMaxAddresses = 256;

template <typename T>
Result<T> Whole(const ByteReader& reader, T value) {
  if (reader.AtEnd()) return value;
  return Status(
      Code::kProtocol,
      "a message of the benchmark's other process is malformed; run the same release on both sides");
}

void Write(ByteWriter& out, const PartyHello& hello) {
  out.Put(hello.number);
  out.Put(hello.incarnation);
  out.PutString(hello.descriptor);
  out.Put(static_cast<uint32_t>(hello.addresses.size()));
  for (const std::string& address : hello.addresses) out.PutString(address);
  out.PutString(hello.metadata);
  out.Put(hello.device);
}

PartyHello ReadHello(ByteReader& in) {
  PartyHello hello{.number = in.Get<uint32_t>(), .incarnation = in.Get<Incarnation>()};
  hello.descriptor = in.GetString(kMaxDescriptor);
  for (auto left = std::min(in.Get<uint32_t>(), kMaxAddresses); left > 0 && in.ok(); --left)
    hello.addresses.emplace_back(in.GetString(kMaxName));
  hello.metadata = in.GetString(kMaxMetadata);
  hello.device = in.Get<int32_t>();
  return hello;
}

ByteWriter Begin(Ask ask) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(ask));
  return out;
}

}  // namespace

std::string Encode(const PartySetup& setup) {
  ByteWriter out = Begin(Ask::kSetUp);
  out.PutString(setup.transport);
  out.PutString(setup.memory);
  out.Put(setup.bytes);
  out.Put(setup.number);
  out.Put(static_cast<uint8_t>(setup.messages));
  for (const uint32_t device : setup.devices) out.Put(device);
  return out.Take();
}

Result<PartySetup> DecodeSetup(std::string_view bytes) {
  ByteReader in(bytes);
  PartySetup setup;
  setup.transport = in.GetString(kMaxName);
  setup.memory = in.GetString(kMaxName);
  setup.bytes = in.Get<uint64_t>();
  setup.number = in.Get<uint32_t>();
  setup.messages = in.Get<uint8_t>() != 0;
  while (in.ok() && !in.rest().empty()) setup.devices.push_back(in.Get<uint32_t>());
  return Whole(in, std::move(setup));
}

std::string Encode(const PartyHello& hello) {
  ByteWriter out;
  Write(out, hello);
  return out.Take();
}

Result<PartyHello> DecodeHello(std::string_view bytes) {
  ByteReader in(bytes);
  PartyHello hello = ReadHello(in);
  return Whole(in, std::move(hello));
}

std::string Encode(const PartyConnect& order) {
  ByteWriter out = Begin(Ask::kMeet);
  Write(out, order.peer);
  out.Put(static_cast<uint8_t>(order.connects));
  return out.Take();
}

Result<PartyConnect> DecodeConnect(std::string_view bytes) {
  ByteReader in(bytes);
  PartyConnect order{.peer = ReadHello(in)};
  order.connects = in.Get<uint8_t>() != 0;
  return Whole(in, std::move(order));
}

std::string Encode(Ask ask, const PartyWork& work) {
  ByteWriter out = Begin(ask);
  out.PutString(work.op);
  for (const uint64_t value :
       {work.piece_bytes, work.iovs, work.slots, work.repeats, work.from, work.to, work.seed})
    out.Put(value);
  out.Put(work.start);
  return out.Take();
}

Result<PartyWork> DecodeWork(std::string_view bytes) {
  ByteReader in(bytes);
  PartyWork work;
  work.op = in.GetString(kMaxName);
  for (uint64_t* value :
       {&work.piece_bytes, &work.iovs, &work.slots, &work.repeats, &work.from, &work.to, &work.seed})
    *value = in.Get<uint64_t>();
  work.start = in.Get<int64_t>();
  return Whole(in, std::move(work));
}

std::string Encode(const PartyTimes& times) {
  ByteWriter out;
  out.Put(times.begin);
  out.Put(times.end);
  for (const int64_t one : times.transfers) out.Put(one);
  return out.Take();
}

Result<PartyTimes> DecodeTimes(std::string_view bytes) {
  ByteReader in(bytes);
  PartyTimes times{.begin = in.Get<int64_t>(), .end = in.Get<int64_t>()};
  while (in.ok() && !in.rest().empty()) times.transfers.push_back(in.Get<int64_t>());
  return Whole(in, std::move(times));
}

std::optional<std::string_view> AnswerTo(std::string_view op) {
  if (op == "ping") return "pong";
  if (op == "signal") return "echo";
  return std::nullopt;
}

bool IsPing(uint64_t piece_bytes, uint64_t iovs) {
  return iovs == 1 && piece_bytes >= sizeof(uint64_t) && piece_bytes <= kMostPing &&
         piece_bytes % sizeof(uint64_t) == 0;
}

}  // namespace weightcast::tools
