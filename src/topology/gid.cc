#include "topology/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/interfaces.h"
#include "base/strings.h"

namespace weightcast::topology {
namespace {

constexpr size_t kMappedPrefix = 12;
constexpr int kMappedBits = 96;
/// InfiniBand's subnet prefix, and IPv6's where the interface does not tell.
constexpr uint8_t kUsualBits = 64;
/// IPv4's where the interface does not tell.
constexpr uint8_t kUsualMappedBits = kMappedBits + 24;

bool IsMapped(const Gid& gid) {
  static constexpr std::array<uint8_t, kMappedPrefix> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), gid.begin());
}

bool IsLinkLocal(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

Gid GidOf(const ibv_gid_entry& entry) {
  Gid gid{};
  std::memcpy(gid.data(), entry.gid.raw, gid.size());
  return gid;
}

/// Higher is better; 0: not to be used by itself.
int Rank(const ibv_gid_entry& entry) {
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return 0;
  const Gid gid = GidOf(entry);
  if (IsMapped(gid)) return 3;
  return IsLinkLocal(gid) ? 1 : 2;
}

/// By the netmask of the interface's address that the GID is made of.
uint8_t SubnetBits(const Gid& gid) {
  const bool mapped = IsMapped(gid);
  const std::string text = ToString(gid);
  for (const InterfaceAddress& one : InterfaceAddresses()) {
    const std::string host = one.address.Host();
    if (one.prefix < 0 || std::string_view(host).substr(0, host.find('%')) != text) continue;
    return static_cast<uint8_t>(one.prefix + (mapped ? kMappedBits : 0));
  }
  return mapped ? kUsualMappedBits : kUsualBits;
}

FoundGid Found(const ibv_gid_entry& entry, const ibv_port_attr& attr) {
  const Gid gid = GidOf(entry);
  const bool ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  return {.gid = gid,
          .index = static_cast<uint8_t>(entry.gid_index),
          .subnet_bits = ethernet ? SubnetBits(gid) : kUsualBits};
}

}  // namespace

std::string ToString(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (IsMapped(gid)) {
    inet_ntop(AF_INET, gid.data() + kMappedPrefix, text, sizeof text);
  } else {
    inet_ntop(AF_INET6, gid.data(), text, sizeof text);
  }
  return text;
}

Result<FoundGid> ChooseGid(drivers::Ibverbs& api, ibv_context* context, uint8_t port,
                           const ibv_port_attr& attr, std::string_view setting) {
  const bool ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  const uint32_t count = std::min<uint32_t>(static_cast<uint32_t>(std::max(attr.gid_tbl_len, 0)), 256);
  const auto wanted = ParseNumber<uint32_t>(setting);
  ibv_gid_entry best{};
  int best_rank = 0;
  for (uint32_t index = 0; index < count; ++index) {
    ibv_gid_entry entry{};
    if (api.QueryGid(context, port, index, &entry) != 0) continue;
    entry.gid_index = index;
    if (wanted ? index == *wanted : !ethernet) return Found(entry, attr);
    const int rank = Rank(entry);
    if (!wanted && rank > best_rank) {
      best = entry;
      best_rank = rank;
    }
  }
  if (best_rank > 0) return Found(best, attr);
  return Status(Code::kUnavailable,
                wanted ? StrCat("its GID table has no entry ", *wanted,
                                "; change setting gid_index to one that it has, or to nothing")
                       : "its GID table has no RoCE v2 entry; give its network interface an IP address");
}

}  // namespace weightcast::topology
