#include "p2p/messages.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/strings.h"

namespace weightcast::p2p {
namespace {

constexpr size_t kMaxDescriptor = 16 << 10;
constexpr size_t kMaxReason = 1024;

void PutStatus(ByteWriter& to, const Status& status) {
  to.Put(static_cast<uint8_t>(status.code()));
  to.PutString(std::string_view(status.message()).substr(0, kMaxReason));
}

/// What a peer says is shown to people and given to Python.
std::string Printable(std::string_view text) {
  std::string shown(text);
  for (char& one : shown)
    if (one < ' ' || one > '~') one = '?';
  return shown;
}

Status GetStatus(ByteReader& from) {
  const auto code = from.Get<uint8_t>();
  std::string text = Printable(from.GetString(kMaxReason));
  if (code == 0) return Status::Ok();
  return {code <= static_cast<uint8_t>(Code::kInternal) ? static_cast<Code>(code) : Code::kInternal,
          std::move(text)};
}

struct Put {
  ByteWriter& to;
  void operator()(const Open& open) const {
    to.Put(open.channel);
    to.Put(open.gpu.index);
    to.Put(static_cast<uint8_t>(open.gpu.by_index));
    to.PutString(std::string_view(open.gpu.label).substr(0, Gpu::kMaxLabel));
  }
  void operator()(const Close& close) const { to.Put(close.channel); }
  void operator()(const Describe& describe) const {
    to.Put(describe.memory);
    PutStatus(to, describe.reason);
    to.PutString(describe.descriptor);
  }
  void operator()(const Want& want) const { to.Put(want.memory); }
  void operator()(const Forget& forget) const { to.Put(forget.memory); }
  void operator()(const Offer& offer) const {
    to.Put(offer.channel);
    to.Put(offer.number);
    to.Put(offer.grant.slot);
    to.Put(offer.grant.id);
    to.Put(static_cast<uint8_t>(offer.more));
    to.Put(static_cast<uint32_t>(offer.slices.size()));
    for (const Slice& slice : offer.slices) {
      to.Put(slice.memory);
      to.Put(slice.offset);
      to.Put(slice.length);
    }
  }
  void operator()(const Withdraw& withdraw) const { PutEnd(withdraw); }
  void operator()(const Abandon& abandon) const { PutEnd(abandon); }
  void operator()(const Finished& finished) const { PutNumber(finished); }
  void operator()(const Received& received) const { PutNumber(received); }
  template <typename OfNumber>
  void PutNumber(const OfNumber& message) const {
    to.Put(message.channel);
    to.Put(message.number);
  }
  template <typename End>
  void PutEnd(const End& end) const {
    to.Put(end.channel);
    to.Put(end.number);
    PutStatus(to, end.reason);
  }
};

Open GetOpen(ByteReader& from) {
  Open open;
  open.channel = from.Get<uint64_t>();
  open.gpu.index = from.Get<int32_t>();
  open.gpu.by_index = from.Get<uint8_t>() != 0;
  open.gpu.label = Printable(from.GetString(Gpu::kMaxLabel));
  return open;
}

Describe GetDescribe(ByteReader& from) {
  Describe describe;
  describe.memory = from.Get<uint64_t>();
  describe.reason = GetStatus(from);
  describe.descriptor = from.GetString(kMaxDescriptor);
  return describe;
}

Offer GetOffer(ByteReader& from) {
  Offer offer;
  offer.channel = from.Get<uint64_t>();
  offer.number = from.Get<uint64_t>();
  offer.grant.slot = from.Get<uint32_t>();
  offer.grant.id = from.Get<uint64_t>();
  offer.more = from.Get<uint8_t>() != 0;
  const auto count = from.Get<uint32_t>();
  if (count > Offer::kMaxSlices) {
    (void)from.GetRaw(SIZE_MAX);  // Beyond the end: malformed.
    return offer;
  }
  for (uint32_t i = 0; i < count && from.ok(); ++i) {
    Slice slice;
    slice.memory = from.Get<uint64_t>();
    slice.offset = from.Get<uint64_t>();
    slice.length = from.Get<uint64_t>();
    offer.slices.push_back(slice);
  }
  return offer;
}

template <typename OfNumber>
OfNumber GetNumber(ByteReader& from) {
  OfNumber message;
  message.channel = from.Get<uint64_t>();
  message.number = from.Get<uint64_t>();
  return message;
}

template <typename End>
End GetEnd(ByteReader& from) {
  End end;
  end.channel = from.Get<uint64_t>();
  end.number = from.Get<uint64_t>();
  end.reason = GetStatus(from);
  if (end.reason.ok()) (void)from.GetRaw(SIZE_MAX);  // Malformed: an end without a reason.
  return end;
}

Result<Message> Get(uint8_t kind, ByteReader& from) {
  switch (kind) {
    case 0:
      return Message(GetOpen(from));
    case 1:
      return Message(Close{from.Get<uint64_t>()});
    case 2:
      return Message(GetDescribe(from));
    case 3:
      return Message(Want{from.Get<uint64_t>()});
    case 4:
      return Message(Forget{from.Get<uint64_t>()});
    case 5:
      return Message(GetOffer(from));
    case 6:
      return Message(GetEnd<Withdraw>(from));
    case 7:
      return Message(GetEnd<Abandon>(from));
    case 8:
      return Message(GetNumber<Finished>(from));
    case 9:
      return Message(GetNumber<Received>(from));
    default:
      return Status(Code::kProtocol, StrCat("sent a p2p message of unknown kind ", static_cast<int>(kind)));
  }
}

}  // namespace

std::string Encode(const Message& message) {
  ByteWriter writer;
  writer.Put(static_cast<uint8_t>(message.index()));
  std::visit(Put{writer}, message);
  return writer.Take();
}

Result<Message> Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto kind = reader.Get<uint8_t>();
  if (!reader.ok()) return Status(Code::kProtocol, "sent an empty p2p message");
  WC_ASSIGN_OR_RETURN(Message message, Get(kind, reader));
  if (!reader.AtEnd())
    return Status(Code::kProtocol, StrCat("sent a malformed p2p message of kind ", static_cast<int>(kind)));
  return message;
}

}  // namespace weightcast::p2p
