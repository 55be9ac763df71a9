#include "transport/verbs/address.h"

#include <algorithm>
#include <cstring>

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

void Put(ByteWriter& out, const Address& address) {
  out.Put(static_cast<uint8_t>((address.infiniband ? kInfiniBand : 0) | (address.grh ? kGrh : 0)));
  out.Put(address.mtu);
  out.Put(address.reads);
  out.Put(address.lid);
  out.PutRaw({reinterpret_cast<const char*>(address.gid.data()), address.gid.size()});
  out.Put(address.subnet_bits);
  out.Put(address.pkey);
}

void Put(ByteWriter& out, const QueueName& queue) {
  out.Put(queue.number);
  out.Put(queue.psn);
}

void Put(ByteWriter& out, const QueueName& control, const std::vector<QueueName>& data) {
  Put(out, control);
  out.Put(static_cast<uint8_t>(data.size()));
  for (const QueueName& queue : data) Put(out, queue);
}

/// Reads with a verdict that a caller looks at once, at the end.
class Parser {
 public:
  explicit Parser(std::string_view bytes) : in_(bytes) {}

  /// A blob begins with it.
  Status CheckVersion() {
    const auto version = Get<uint8_t>();
    return good() ? transport::CheckVersion("verbs", version, kVersion) : Status::Ok();
  }
  template <typename T>
  T Get() {
    return in_.Get<T>();
  }
  void Require(bool condition) { good_ = good_ && condition; }
  [[nodiscard]] bool good() const { return good_ && in_.ok(); }
  [[nodiscard]] bool Whole() const { return good_ && in_.AtEnd(); }

  Address GetAddress() {
    Address address;
    const auto facts = Get<uint8_t>();
    Require(facts <= (kInfiniBand | kGrh));
    address.infiniband = (facts & kInfiniBand) != 0;
    address.grh = (facts & kGrh) != 0;
    address.mtu = Get<uint8_t>();
    Require(address.mtu >= kMtu256 && address.mtu <= kMtu4096);
    address.reads = Get<uint8_t>();
    address.lid = Get<uint16_t>();
    const auto gid = in_.GetRaw(address.gid.size());
    if (in_.ok()) std::memcpy(address.gid.data(), gid.data(), gid.size());
    address.subnet_bits = Get<uint8_t>();
    Require(address.subnet_bits <= 128);
    address.pkey = Get<uint16_t>();
    return address;
  }
  QueueName GetQueue() {
    QueueName queue{Get<uint32_t>(), Get<uint32_t>()};
    Require(queue.number < kNumbers && queue.psn < kNumbers);
    return queue;
  }
  std::vector<QueueName> GetQueues() {
    std::vector<QueueName> queues;
    const auto count = Get<uint8_t>();
    Require(count <= kMaxLanes);
    for (int i = 0; i < count && good(); ++i) queues.push_back(GetQueue());
    return queues;
  }

 private:
  ByteReader in_;
  bool good_ = true;
};

}  // namespace

std::string WhyApart(const Address& x, const Address& y) {
  const auto between = [&] { return StrCat(ToString(x), " and ", ToString(y)); };
  if (x.infiniband != y.infiniband)
    return StrCat(between(),
                  " are not of one kind: InfiniBand and RoCE; choose NICs of one kind by the setting nics");
  if (!x.infiniband) return {};
  if (!SameSubnet(x, y)) {
    return StrCat(
        between(),
        " are in InfiniBand subnets of different prefixes, between which no route is known; choose NICs of "
        "one subnet by the setting nics");
  }
  if (((x.pkey ^ y.pkey) & ~topology::kFullMember) == 0 && ((x.pkey | y.pkey) & topology::kFullMember) != 0)
    return {};
  return StrCat(
      between(), " are in no common InfiniBand partition of which one is a full member, with P_Keys ",
      topology::PkeyText(x.pkey), " and ", topology::PkeyText(y.pkey), "; choose one by the setting pkey");
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

std::string Encode(const Offer& offer) {
  ByteWriter out;
  out.Put(kVersion);
  out.Put(offer.cookie);
  out.Put(static_cast<uint8_t>(offer.nics.size()));
  for (const OfferedNic& nic : offer.nics) {
    out.Put(nic.index);
    Put(out, nic.address);
    Put(out, nic.control, nic.data);
  }
  return out.Take();
}

std::string Encode(const Answer& answer) {
  ByteWriter out;
  out.Put(kVersion);
  out.Put(answer.cookie);
  out.Put(static_cast<uint8_t>(answer.rails.size()));
  for (const AnsweredRail& rail : answer.rails) {
    out.Put(rail.offered);
    out.Put(rail.nic);
    Put(out, rail.address);
    Put(out, rail.control, rail.data);
  }
  return out.Take();
}

Result<Offer> ParseOffer(std::string_view bytes) {
  Parser in(bytes);
  Offer offer;
  WC_RETURN_IF_ERROR(in.CheckVersion());
  offer.cookie = in.Get<uint64_t>();
  const auto count = in.Get<uint8_t>();
  in.Require(count > 0 && count <= kMaxNics);
  for (int i = 0; i < count && in.good(); ++i) {
    OfferedNic nic;
    nic.index = in.Get<uint8_t>();
    nic.address = in.GetAddress();
    nic.control = in.GetQueue();
    nic.data = in.GetQueues();
    in.Require(nic.index < kMaxNics && !nic.data.empty());
    offer.nics.push_back(std::move(nic));
  }
  if (!in.Whole()) return OtherRelease("the peer's verbs offer is malformed");
  return offer;
}

Result<Answer> ParseAnswer(std::string_view bytes) {
  Parser in(bytes);
  Answer answer;
  WC_RETURN_IF_ERROR(in.CheckVersion());
  answer.cookie = in.Get<uint64_t>();
  const auto count = in.Get<uint8_t>();
  in.Require(count > 0 && count <= kMaxNics);
  for (int i = 0; i < count && in.good(); ++i) {
    AnsweredRail rail;
    rail.offered = in.Get<uint8_t>();
    rail.nic = in.Get<uint8_t>();
    rail.address = in.GetAddress();
    rail.control = in.GetQueue();
    rail.data = in.GetQueues();
    in.Require(rail.nic < kMaxNics && !rail.data.empty());
    answer.rails.push_back(std::move(rail));
  }
  if (!in.Whole()) return OtherRelease("the peer's verbs answer is malformed");
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
  out.Put(kVersion);
  out.Put(key.id);
  out.Put(key.generation);
  out.Put(key.access);
  out.Put(key.base);
  out.Put(key.length);
  out.Put(key.part);
  out.Put(static_cast<uint16_t>(key.rkeys.size()));
  for (const uint32_t rkey : key.rkeys) out.Put(rkey);
  return out.Take();
}

Result<RegionKey> ParseRegionKey(std::string_view bytes) {
  Parser in(bytes);
  RegionKey key;
  WC_RETURN_IF_ERROR(in.CheckVersion());
  key.id = in.Get<uint32_t>();
  key.generation = in.Get<uint32_t>();
  key.access = in.Get<uint8_t>();
  key.base = in.Get<uint64_t>();
  key.length = in.Get<uint64_t>();
  key.part = in.Get<uint64_t>();
  const auto count = in.Get<uint16_t>();
  const auto parts = CutInto(key.part, key.length);
  in.Require(parts && count <= kMaxNics * parts->count && count % parts->count == 0 &&
             key.base + key.length >= key.base);
  for (int i = 0; i < count && in.good(); ++i) key.rkeys.push_back(in.Get<uint32_t>());
  if (!in.Whole()) return OtherRelease("the peer's key of a region is not one of the verbs transport");
  return key;
}

}  // namespace weightcast::transport::verbs
