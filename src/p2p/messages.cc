#include "p2p/messages.h"

#include <concepts>
#include <utility>

#include "base/bytes.h"
#include "base/strings.h"
#include "endpoint/message.h"

namespace weightcast::p2p {
namespace {

using endpoint::kMaxReason;
using endpoint::Printable;

constexpr size_t kMaxDescriptor = 16 << 10;

/// Writes the members of a message.
struct Putter {
  ByteWriter& to;

  void operator()(const auto&... members) { (Put(members), ...); }
  void Put(std::integral auto number) { to.Put(number); }
  void Put(const std::string& text) { to.PutString(text); }
  void Put(const Status& status) {
    to.Put(static_cast<uint8_t>(status.code()));
    to.PutString(std::string_view(status.message()).substr(0, kMaxReason));
  }
  void Put(const std::vector<Slice>& slices) {
    to.Put(static_cast<uint32_t>(slices.size()));
    for (const Slice& slice : slices) (*this)(slice.memory, slice.offset, slice.length);
  }
  void Label(const std::string& label) { to.PutString(std::string_view(label).substr(0, Gpu::kMaxLabel)); }
  void Reason(const Status& reason) { Put(reason); }
};

/// Reads them.
struct Getter {
  ByteReader& from;

  void operator()(auto&... members) { (Get(members), ...); }
  template <std::integral T>
  void Get(T& number) {
    number = from.Get<T>();
  }
  void Get(bool& flag) { flag = from.Get<uint8_t>() != 0; }
  void Get(std::string& text) { text = from.GetString(kMaxDescriptor); }
  void Get(Status& status) {
    const auto code = from.Get<uint8_t>();
    const std::string text = Printable(from.GetString(kMaxReason));  // Python gets it, too.
    const bool known = code <= static_cast<uint8_t>(Code::kInternal);
    if (code != 0) status = {known ? static_cast<Code>(code) : Code::kInternal, text};
  }
  void Get(std::vector<Slice>& slices) {
    const auto count = from.Get<uint32_t>();
    if (count > Offer::kMaxSlices) return Refuse();
    for (uint32_t i = 0; i < count && from.ok(); ++i) {
      Slice& slice = slices.emplace_back();
      (*this)(slice.memory, slice.offset, slice.length);
    }
  }
  void Label(std::string& label) { label = Printable(from.GetString(Gpu::kMaxLabel)); }
  /// Of an end: it has one.
  void Reason(Status& reason) {
    Get(reason);
    if (reason.ok()) Refuse();
  }

 private:
  void Refuse() { (void)from.GetRaw(SIZE_MAX); }  // Beyond the end: malformed.
};

template <typename M, typename T>
concept Is = std::same_as<std::remove_const_t<M>, T>;
template <typename M>
concept OfMemory = Is<M, Want> || Is<M, Forget>;
template <typename M>
concept OfNumber = Is<M, Finished> || Is<M, Received>;
template <typename M>
concept End = Is<M, Withdraw> || Is<M, Abandon>;

// The members of each message, as they follow each other on the wire.
void Members(auto& visit, Is<Open> auto& m) {
  visit(m.channel, m.gpu.index, m.gpu.by_index);
  visit.Label(m.gpu.label);
}
void Members(auto& visit, Is<Close> auto& m) { visit(m.channel); }
void Members(auto& visit, Is<Describe> auto& m) { visit(m.memory, m.reason, m.descriptor); }
void Members(auto& visit, OfMemory auto& m) { visit(m.memory); }
void Members(auto& visit, Is<Offer> auto& m) {
  visit(m.channel, m.number, m.grant.slot, m.grant.id, m.more, m.slices);
}
void Members(auto& visit, OfNumber auto& m) { visit(m.channel, m.number); }
void Members(auto& visit, End auto& m) {
  visit(m.channel, m.number);
  visit.Reason(m.reason);
}

template <size_t kKind = 0>
Result<Message> Get(uint8_t kind, ByteReader& from) {
  if constexpr (kKind == std::variant_size_v<Message>) {
    return Error(Code::kProtocol, "sent a p2p message of unknown kind ", static_cast<int>(kind));
  } else {
    if (kind != kKind) return Get<kKind + 1>(kind, from);
    std::variant_alternative_t<kKind, Message> message;
    Getter get{from};
    Members(get, message);
    return Message(std::move(message));
  }
}

}  // namespace

std::string Encode(const Message& message) {
  ByteWriter writer;
  writer.Put(static_cast<uint8_t>(message.index()));
  Putter put{writer};
  std::visit([&](const auto& what) { Members(put, what); }, message);
  return writer.Take();
}

Result<Message> Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto kind = reader.Get<uint8_t>();
  if (!reader.ok()) return Status(Code::kProtocol, "sent an empty p2p message");
  WC_ASSIGN_OR_RETURN(Message message, Get(kind, reader));
  if (!reader.AtEnd())
    return Error(Code::kProtocol, "sent a malformed p2p message of kind ", static_cast<int>(kind));
  return message;
}

}  // namespace weightcast::p2p
