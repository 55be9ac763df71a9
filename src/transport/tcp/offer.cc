#include "transport/tcp/offer.h"

#include <algorithm>

#include "base/bytes.h"
#include "transport/other_release.h"

namespace weightcast::transport::tcp {
namespace {

constexpr uint8_t kOfferVersion = 3;
constexpr size_t kMaxBootId = 64;
constexpr size_t kMaxAddressText = 96;

template <typename Blob>
void PutHead(ByteWriter& out, const Blob& blob) {
  out.Put(kOfferVersion, blob.cookie, blob.lanes, blob.depth);
}

template <typename Blob>
Status GetHead(ByteReader& in, Blob& blob) {
  const auto version = in.Get<uint8_t>();
  if (in.ok()) WC_RETURN_IF_ERROR(CheckVersion("tcp", version, kOfferVersion));
  in.Get(blob.cookie, blob.lanes, blob.depth);
  if (!in.ok() || blob.lanes < 1 || blob.lanes > kMaxLanes || blob.depth < 1 || blob.depth > kMaxDepth) {
    return OtherRelease("the peer's tcp offer or answer is malformed");
  }
  return Status::Ok();
}

}  // namespace

std::string EncodeOffer(const Offer& offer) {
  ByteWriter out;
  PutHead(out, offer);
  out.PutString(std::string_view(offer.boot_id).substr(0, kMaxBootId));
  return out.Take();
}

std::string EncodeAnswer(const Answer& answer) {
  ByteWriter out;
  PutHead(out, answer);
  const size_t count = std::min(answer.addresses.size(), kMaxAddresses);
  out.Put(answer.spread, static_cast<uint8_t>(count));
  for (size_t i = 0; i < count; ++i) out.PutString(answer.addresses[i].ToString());
  return out.Take();
}

Result<Offer> ParseOffer(std::string_view bytes) {
  ByteReader in(bytes);
  Offer offer;
  WC_RETURN_IF_ERROR(GetHead(in, offer));
  offer.boot_id = in.GetString(kMaxBootId);
  if (!in.AtEnd()) return OtherRelease("the peer's tcp offer is malformed");
  return offer;
}

Result<Answer> ParseAnswer(std::string_view bytes) {
  ByteReader in(bytes);
  Answer answer;
  WC_RETURN_IF_ERROR(GetHead(in, answer));
  const auto spread = in.Get<uint8_t>();
  answer.spread = spread == 1;
  const auto count = in.Get<uint8_t>();
  const Status malformed = OtherRelease("the peer's tcp answer is malformed");
  if (!in.ok() || spread > 1 || count > kMaxAddresses) return malformed;
  for (int i = 0; i < count; ++i) {
    const auto text = in.GetString(kMaxAddressText);
    // An abstract Unix name, which would lead into this host, is none.
    const auto found = ParseOfPeer(text);
    if (!in.ok()) return malformed;
    if (found.status().code() == Code::kUnavailable) continue;
    if (!found.ok() || found->front().port() == 0) return malformed;
    const size_t room = kMaxAttempts - answer.addresses.size();
    answer.addresses.insert(answer.addresses.end(), found->begin(),
                            found->begin() + static_cast<std::ptrdiff_t>(std::min(room, found->size())));
  }
  if (!in.AtEnd()) return malformed;
  return answer;
}

}  // namespace weightcast::transport::tcp
