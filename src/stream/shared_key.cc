#include "stream/shared_key.h"

#include "base/strings.h"
#include "stream/token.h"

namespace weightcast::stream {
namespace {

Result<Secret> KeyOf(std::string_view text, Purpose purpose) {
  if (RoleToken::IsOne(text)) {
    WC_ASSIGN_OR_RETURN(const RoleToken role, RoleToken::Parse(text));
    return role.Key(purpose);
  }
  WC_ASSIGN_OR_RETURN(const MasterToken master, MasterToken::Parse(text));
  return master.Key(purpose, {});
}

}  // namespace

Result<std::string> CheckTokenText(std::string text, std::string_view origin) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  if (text.empty())
    return Error(Code::kInvalidArgument, "the job token in ", origin,
                 " is empty; make one with `openssl rand -hex 32`");
  for (const char c : text) {
    if (c <= ' ' || c > '~')
      return Error(Code::kInvalidArgument, "the job token in ", origin,
                   " has other characters than letters, digits and punctuation; make one with "
                   "`openssl rand -hex 32`");
  }
  return text;
}

Result<Secret> SharedKeyOf(std::string_view text, Purpose purpose, std::string_view origin) {
  WC_ASSIGN_OR_RETURN(std::string token, CheckTokenText(std::string(text), origin));
  const CleansedAtEnd cleansed(token);
  auto key = KeyOf(token, purpose);
  if (key.ok()) return key;
  return Error(key.status().code(), origin, ": ", key.status().message());
}

}  // namespace weightcast::stream
