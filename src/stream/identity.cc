#include "stream/identity.h"

#include "base/strings.h"
#include "stream/library.h"

namespace weightcast::stream {
namespace {

constexpr std::string_view kName = "weightcast/";
constexpr size_t kJobBytes = 16;

bool IsJobHash(std::string_view text) {
  return text.size() == kJobBytes && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string JobHash(std::string_view controller_public_key) { return ShortHash(controller_public_key); }

std::string IdentityText(const Identity& identity) {
  return StrCat(ProtocolName(identity.version), ":", MemberText(identity.member), ":", identity.job);
}

std::optional<Identity> ParseIdentity(std::string_view text) {
  const size_t first = text.find(':');
  const size_t second = first == std::string_view::npos ? first : text.find(':', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto version = ParseProtocolName(text.substr(0, first));
  const auto member = ParseMember(text.substr(first + 1, second - first - 1));
  const std::string_view job = text.substr(second + 1);
  if (!version || !member || !IsJobHash(job)) return std::nullopt;
  Identity identity{.version = *version, .member = *member, .job = std::string(job)};
  if (IdentityText(identity) != text) return std::nullopt;
  return identity;
}

std::string ProtocolName(uint32_t version) { return StrCat(kName, version); }

std::optional<uint32_t> ParseProtocolName(std::string_view text) {
  if (!text.starts_with(kName)) return std::nullopt;
  return ParseNumber<uint32_t>(text.substr(kName.size()));
}

}  // namespace weightcast::stream
