#include "endpoint/message.h"

#include <algorithm>

#include "base/bytes.h"

namespace weightcast::endpoint {

std::string Printable(std::string_view text, size_t limit) {
  std::string out(text.substr(0, limit));
  for (char& character : out) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte >= 0x7f) character = '?';
  }
  return out;
}

std::string EncodeOutcome(const Status& status) {
  return PackBytes(status.code(), std::string_view(status.message()).substr(0, kMaxReason));
}

std::optional<Status> ParseOutcome(std::string_view payload) {
  ByteReader in(payload);
  const auto code = in.Get<uint8_t>();
  const auto text = in.GetString(kMaxReason);
  if (!in.AtEnd() || code > static_cast<uint8_t>(Code::kInternal)) return std::nullopt;
  return Status(static_cast<Code>(code), Printable(text));
}

std::string EncodeOffers(const std::vector<PathOffer>& offers) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(offers.size()));
  for (const PathOffer& offer : offers) {
    out.Put(offer.transport, offer.open,
            std::string_view(offer.blob).substr(0, offer.open ? kMaxBlob : kMaxReason));
  }
  return out.Take();
}

std::optional<std::vector<PathOffer>> ParseOffers(std::string_view payload) {
  ByteReader in(payload);
  const auto count = in.Get<uint8_t>();
  if (count > kMaxTransports) return std::nullopt;
  std::vector<PathOffer> offers;
  for (int i = 0; i < count && in.ok(); ++i) {
    PathOffer offer;
    offer.transport = in.GetString(kMaxTransportName);
    const auto open = in.Get<uint8_t>();
    const auto blob = in.GetString(kMaxBlob);
    offer.open = open == 1;
    offer.blob = offer.open ? std::string(blob) : Printable(blob);
    const bool known = std::ranges::find(offers, offer.transport, &PathOffer::transport) != offers.end();
    if (open > 1 || known || offer.transport.empty()) return std::nullopt;
    offers.push_back(std::move(offer));
  }
  if (!in.AtEnd()) return std::nullopt;
  return offers;
}

std::string EncodePath(const PathNotice& notice) {
  return PackBytes(notice.index, static_cast<uint8_t>(notice.ready ? 1 : 2),
                   std::string_view(notice.reason).substr(0, kMaxReason));
}

std::optional<PathNotice> ParsePath(std::string_view payload) {
  ByteReader in(payload);
  PathNotice notice;
  notice.index = in.Get<uint8_t>();
  const auto state = in.Get<uint8_t>();
  notice.ready = state == 1;
  notice.reason = Printable(in.GetString(kMaxReason));
  if (!in.AtEnd() || notice.index >= kMaxTransports || (state != 1 && state != 2)) return std::nullopt;
  return notice;
}

std::string EncodeChosen(uint8_t index) { return PackBytes(index); }

std::optional<uint8_t> ParseChosen(std::string_view payload) {
  ByteReader in(payload);
  const auto index = in.Get<uint8_t>();
  if (!in.AtEnd() || index >= kMaxTransports) return std::nullopt;
  return index;
}

std::string EncodeCredit(uint64_t taken) { return PackBytes(taken); }

std::optional<uint64_t> ParseCredit(std::string_view payload) {
  ByteReader in(payload);
  const auto taken = in.Get<uint64_t>();
  if (!in.AtEnd()) return std::nullopt;
  return taken;
}

}  // namespace weightcast::endpoint
