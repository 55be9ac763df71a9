// Tokens and the names of keys: each has one text, and an error does not quote it.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "stream/encoding.h"
#include "stream/identity.h"
#include "stream/token.h"

using namespace weightcast::stream;

namespace {

/// Longer than any word of an error; text with a space may be several of its words.
constexpr size_t kTelling = 24;

template <typename Parsed>
void MustNotQuote(const Parsed& parsed, std::string_view text) {
  if (parsed.ok() || text.size() < kTelling || text.find(' ') != std::string_view::npos) return;
  if (parsed.status().message().find(text) != std::string::npos) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto token = RoleToken::Parse(text);
  MustNotQuote(token, text);
  if (token.ok() && token->Print().bytes() != text) std::abort();
  if (token.ok() && !ParseMember(MemberText(token->member()))) std::abort();
  MustNotQuote(MasterToken::Parse(text), text);
  if (const auto identity = ParseIdentity(text); identity && IdentityText(*identity) != text) std::abort();
  if (const auto bytes = FromBase64(text); bytes && ToBase64(*bytes) != text) std::abort();
  if (const auto name = Unescape(text); name && Escape(*name) != text) std::abort();
  return 0;
}
