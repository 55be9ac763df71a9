#include "transport/verbs/address.h"

#include <algorithm>
#include <tuple>

#include "base/strings.h"
#include "topology/gid.h"
#include "topology/pkey.h"
#include "transport/other_release.h"

namespace weightcast::transport::verbs {
namespace {

constexpr uint8_t kVersion = 3;
/// What is true of an address.
constexpr uint8_t kInfiniBand = 1;
constexpr uint8_t kGrh = 2;
constexpr uint32_t kNumbers = 1U << 24;
constexpr uint8_t kMtu256 = 1;
constexpr uint8_t kMtu4096 = 5;

// The fields of each, in the order in which they cross.
auto Fields(Address& m) { return std::tie(m.mtu, m.reads, m.lid, m.gid, m.subnet_bits, m.pkey); }
auto Fields(QueueName& m) { return std::tie(m.number, m.psn); }
auto Fields(OfferedNic& m) { return std::tie(m.index); }
auto Fields(AnsweredRail& m) { return std::tie(m.offered, m.nic); }
auto Fields(RegionKey& m) { return std::tie(m.id, m.generation, m.access, m.base, m.length, m.part); }

uint8_t NicOf(const OfferedNic& offered) { return offered.index; }
uint8_t NicOf(const AnsweredRail& rail) { return rail.nic; }

/// An offer or an answer.
template <typename Rail>
std::string EncodeRails(uint64_t cookie, const std::vector<Rail>& rails) {
  ByteWriter out;
  out.Put(kVersion, cookie, static_cast<uint8_t>(rails.size()));
  for (Rail rail : rails) {
    const int facts = (rail.address.infiniband ? kInfiniBand : 0) | (rail.address.grh ? kGrh : 0);
    out.Put(Fields(rail), static_cast<uint8_t>(facts), Fields(rail.address), Fields(rail.control));
    out.Put(static_cast<uint8_t>(rail.data.size()));
    for (QueueName& queue : rail.data) out.Put(Fields(queue));
  }
  return out.Take();
}

/// Reads with a verdict that a caller looks at once, at the end.
class Parser : public ByteReader {
 public:
  using ByteReader::ByteReader;

  /// A blob begins with it.
  Status CheckVersion() {
    const auto version = Get<uint8_t>();
    return good() ? transport::CheckVersion("verbs", version, kVersion) : Status::Ok();
  }
  void Require(bool condition) { good_ = good_ && condition; }
  [[nodiscard]] bool good() const { return good_ && ok(); }
  [[nodiscard]] bool Whole() const { return good_ && AtEnd(); }

  /// The rest of an offer or of an answer. True if it is whole.
  template <typename Rail>
  bool GetRails(uint64_t& cookie, std::vector<Rail>& rails) {
    Get(cookie);
    const auto count = Get<uint8_t>();
    Require(count > 0 && count <= kMaxNics);
    for (int i = 0; i < count && good(); ++i) {
      Rail& rail = rails.emplace_back();
      Get(Fields(rail));
      GetAddress(rail.address);
      rail.control = GetQueue();
      const auto lanes = Get<uint8_t>();
      Require(lanes > 0 && lanes <= kMaxLanes && NicOf(rail) < kMaxNics);
      for (int lane = 0; lane < lanes && good(); ++lane) rail.data.push_back(GetQueue());
    }
    return Whole();
  }

 private:
  void GetAddress(Address& address) {
    const auto facts = Get<uint8_t>();
    address.infiniband = (facts & kInfiniBand) != 0;
    address.grh = (facts & kGrh) != 0;
    Get(Fields(address));
    Require(facts <= (kInfiniBand | kGrh) && address.mtu >= kMtu256 && address.mtu <= kMtu4096 &&
            address.subnet_bits <= 128);
  }
  QueueName GetQueue() {
    QueueName queue;
    Get(Fields(queue));
    Require(queue.number < kNumbers && queue.psn < kNumbers);
    return queue;
  }

  bool good_ = true;
};

}  // namespace

std::string WhyApart(const Address& x, const Address& y) {
  const auto between = [&] { return StrCat(ToString(x), " and ", ToString(y)); };
  if (x.infiniband != y.infiniband)
    return StrCat(between(),
                  " are not of one kind: InfiniBand and RoCE; choose NICs of one kind in setting nics");
  if (!x.infiniband) return {};
  if (!SameSubnet(x, y)) {
    return StrCat(
        between(),
        " are in InfiniBand subnets of different prefixes, between which no route is known; choose NICs of "
        "one subnet in setting nics");
  }
  if (((x.pkey ^ y.pkey) & ~topology::kFullMember) == 0 && ((x.pkey | y.pkey) & topology::kFullMember) != 0)
    return {};
  return StrCat(
      between(), " are in no common InfiniBand partition of which one is a full member, with P_Keys ",
      topology::PkeyText(x.pkey), " and ", topology::PkeyText(y.pkey), "; choose one in setting pkey");
}

bool SameSubnet(const Address& x, const Address& y) {
  if (x.infiniband != y.infiniband || x.subnet_bits != y.subnet_bits) return false;
  const size_t whole = x.subnet_bits / 8;
  if (!std::equal(x.gid.begin(), x.gid.begin() + static_cast<std::ptrdiff_t>(whole), y.gid.begin()))
    return false;
  const int rest = x.subnet_bits % 8;
  return rest == 0 || (x.gid[whole] ^ y.gid[whole]) >> (8 - rest) == 0;
}

std::string ToString(const Address& address) {
  return address.infiniband ? StrCat("LID ", address.lid) : topology::ToString(address.gid);
}

std::string Encode(const Offer& offer) { return EncodeRails(offer.cookie, offer.nics); }
std::string Encode(const Answer& answer) { return EncodeRails(answer.cookie, answer.rails); }

Result<Offer> ParseOffer(std::string_view bytes) {
  Parser in(bytes);
  Offer offer;
  WC_RETURN_IF_ERROR(in.CheckVersion());
  if (!in.GetRails(offer.cookie, offer.nics)) return OtherRelease("the peer's verbs offer is malformed");
  return offer;
}

Result<Answer> ParseAnswer(std::string_view bytes) {
  Parser in(bytes);
  Answer answer;
  WC_RETURN_IF_ERROR(in.CheckVersion());
  if (!in.GetRails(answer.cookie, answer.rails)) return OtherRelease("the peer's verbs answer is malformed");
  return answer;
}

std::optional<Parts> CutInto(uint64_t part, uint64_t length) {
  if (part == 0) return std::nullopt;
  const uint64_t count = length == 0 ? 1 : (length - 1) / part + 1;
  if (count > Parts::kMost) return std::nullopt;
  return Parts{.length = part, .count = static_cast<uint32_t>(count)};
}

std::string Encode(const RegionKey& key) {
  ByteWriter out;
  RegionKey copy = key;
  out.Put(kVersion, Fields(copy), static_cast<uint16_t>(key.rkeys.size()));
  for (const uint32_t rkey : key.rkeys) out.Put(rkey);
  return out.Take();
}

Result<RegionKey> ParseRegionKey(std::string_view bytes) {
  Parser in(bytes);
  RegionKey key;
  WC_RETURN_IF_ERROR(in.CheckVersion());
  in.Get(Fields(key));
  const auto count = in.Get<uint16_t>();
  const auto parts = CutInto(key.part, key.length);
  in.Require(parts && count <= kMaxNics * parts->count && count % parts->count == 0 &&
             key.base + key.length >= key.base);
  for (int i = 0; i < count && in.good(); ++i) key.rkeys.push_back(in.Get<uint32_t>());
  if (!in.Whole()) return OtherRelease("the peer's key of a region is not one of the verbs transport");
  return key;
}

}  // namespace weightcast::transport::verbs
