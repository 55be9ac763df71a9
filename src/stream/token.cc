#include "stream/token.h"

#include <algorithm>
#include <bitset>
#include <cctype>

#include "base/strings.h"
#include "stream/encoding.h"
#include "stream/library.h"

namespace weightcast::stream {
namespace {

constexpr std::string_view kPrefix = "wct1:";
constexpr size_t kLeastDistinct = 6;  // Sixteen random bytes have fewer once in 10^9 hexadecimal texts.
constexpr size_t kMostTextBytes = 4096;

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
}
bool IsBase64(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '+' || c == '/' || c == '-' || c == '_' || c == '=';
  });
}

/// How many random bytes the text can hold.
size_t Capacity(std::string_view text) {
  if (IsHex(text)) return text.size() / 2;
  if (IsBase64(text)) return text.size() * 3 / 4;
  return text.size();
}

size_t DistinctBytes(std::string_view text) {
  std::bitset<256> seen;
  for (const unsigned char c : text) seen.set(c);
  return seen.count();
}

Status BadToken(std::string_view what) {
  return Error(Code::kInvalidArgument, "the role token ", what,
               "; make one with `weightcast token --role ROLE` and copy all of it");
}

}  // namespace

Result<MasterToken> MasterToken::Parse(std::string_view text) {
  if (RoleToken::IsOne(text))
    return Status(Code::kInvalidArgument,
                  "a role token is given where the job's master token is needed; set WEIGHTCAST_TOKEN or "
                  "setting token_file to that of the controller");
  if (text.size() > kMostTextBytes)
    return Error(Code::kInvalidArgument, "the job token has ", text.size(), " bytes (at most ",
                 kMostTextBytes, "); make one with `openssl rand -hex 32`");
  if (Capacity(text) < kLeastBytes || DistinctBytes(text) < kLeastDistinct)
    return Error(Code::kInvalidArgument, "the job token is too weak: it must hold ", kLeastBytes,
                 " random bytes or more; make one with `openssl rand -hex 32`");
  return MasterToken(Secret(text));
}

Secret MasterToken::Key(Purpose purpose, const Member& member) const {
  std::string info = StrCat("weightcast ", PurposeName(purpose));
  if (purpose == Purpose::kControl) info += StrCat("|", MemberText(member));
  return DeriveKey(secret_, info);
}

SigningKey MasterToken::Controller() const { return SigningKey(DeriveKey(secret_, "weightcast controller")); }

Result<RoleToken> RoleToken::Derive(const MasterToken& master, const Member& member) {
  WC_RETURN_IF_ERROR(CheckMember(member));
  RoleToken token;
  token.member_ = member;
  token.controller_ = master.Controller().public_key();
  for (const Purpose purpose : PurposesOf(member.role)) token.keys_.push_back(master.Key(purpose, member));
  return token;
}

bool RoleToken::IsOne(std::string_view text) { return text.starts_with(kPrefix); }

Result<RoleToken> RoleToken::Parse(std::string_view text) {
  if (!IsOne(text)) return BadToken("does not begin with wct1:");
  if (text.size() > kMostTextBytes) return BadToken("is too long");
  const std::string_view body = text.substr(kPrefix.size());
  const size_t first = body.find(':');
  const size_t second = first == std::string_view::npos ? first : body.find(':', first + 1);
  if (second == std::string_view::npos) return BadToken("has a part missing");
  const auto member = ParseMember(body.substr(0, first));
  if (!member) return BadToken("names no role that this release knows");
  auto keys = FromBase64(body.substr(first + 1, second - first - 1));
  if (!keys) return BadToken("is damaged");
  const CleansedAtEnd cleansed(*keys);
  const auto controller = FromBase64(body.substr(second + 1));
  const size_t count = PurposesOf(member->role).size();
  if (!controller || controller->size() != kPublicKeyBytes || keys->size() != count * kKeyBytes)
    return BadToken("is damaged");
  RoleToken token;
  token.member_ = *member;
  token.controller_ = *controller;
  for (size_t i = 0; i < count; ++i)
    token.keys_.emplace_back(std::string_view(*keys).substr(i * kKeyBytes, kKeyBytes));
  return token;
}

Secret RoleToken::Print() const {
  std::string keys;
  const CleansedAtEnd keys_cleansed(keys);
  keys.reserve(keys_.size() * kKeyBytes);
  for (const Secret& key : keys_) keys += key.bytes();
  std::string encoded = ToBase64(keys);
  const CleansedAtEnd encoded_cleansed(encoded);
  const std::string head = StrCat(kPrefix, MemberText(member_), ":");
  const std::string tail = StrCat(":", ToBase64(controller_));
  std::string text;
  const CleansedAtEnd text_cleansed(text);
  text.reserve(head.size() + encoded.size() + tail.size());  // Growing would leave copies behind.
  text.append(head).append(encoded).append(tail);
  return Secret(text);
}

Result<Secret> RoleToken::Key(Purpose purpose) const {
  const auto& purposes = PurposesOf(member_.role);
  const auto at = std::ranges::find(purposes, purpose);
  if (at == purposes.end())
    return Error(Code::kPermission, "a token of the role ", RoleName(member_.role), " has no key for '",
                 PurposeName(purpose),
                 "'; give this process a token of its role (`weightcast token`) or the job's master token");
  return keys_[static_cast<size_t>(at - purposes.begin())];
}

}  // namespace weightcast::stream
