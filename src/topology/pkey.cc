#include "topology/pkey.h"

#include <endian.h>

#include <cstdio>

#include "base/strings.h"

namespace weightcast::topology {
namespace {

constexpr uint16_t kPartition = 0x7fff;
constexpr uint16_t kDefault = 0xffff;

/// nullopt: empty, or cannot be read.
std::optional<uint16_t> KeyAt(drivers::Ibverbs& api, ibv_context* context, uint8_t port, int index) {
  __be16 raw = 0;
  if (api.QueryPkey(context, port, index, &raw) != 0) return std::nullopt;
  const uint16_t key = be16toh(raw);
  return (key & kPartition) == 0 ? std::nullopt : std::optional(key);
}

}  // namespace

std::string PkeyText(uint16_t key) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%04x", key);
  return text;
}

Result<FoundPkey> ChoosePkey(drivers::Ibverbs& api, ibv_context* context, uint8_t port,
                             const ibv_port_attr& attr, std::string_view setting) {
  if (attr.link_layer == IBV_LINK_LAYER_ETHERNET) return FoundPkey{};
  const auto wanted = ParseHex<uint16_t>(setting);
  std::optional<FoundPkey> limited;
  std::string seen;
  for (int index = 0; index < attr.pkey_tbl_len; ++index) {
    const auto key = KeyAt(api, context, port, index);
    if (!key) continue;
    seen += StrCat(seen.empty() ? "" : ", ", PkeyText(*key));
    if (wanted && ((*key ^ *wanted) & kPartition) != 0) continue;
    const FoundPkey found{.key = *key, .index = static_cast<uint16_t>(index)};
    if ((*key & kFullMember) != 0) return found;
    if (!limited && (wanted || index == 0)) limited = found;
  }
  if (limited) return *limited;
  if (!wanted) return FoundPkey{.key = kDefault, .index = 0};
  return Error(Code::kUnavailable, "its P_Key table has no ", PkeyText(*wanted), " but ",
               seen.empty() ? "nothing" : seen, "; change setting pkey to one that it has, or to nothing");
}

}  // namespace weightcast::topology
