#include "stream/keys.h"

#include <algorithm>

#include "base/strings.h"

namespace weightcast::stream {
namespace {

/// Of a stream that such a member opens.
std::optional<Purpose> PurposeOf(Role role) {
  if (role == Role::kObserver) return Purpose::kObserve;
  if (role == Role::kPeer) return std::nullopt;
  return Purpose::kControl;
}

std::string VersionsOf(const ClientHello& hello) {
  for (const std::string& name : hello.protocols)
    if (const auto version = ParseProtocolName(name)) return StrCat("protocol version ", *version);
  return "another protocol than weightcast";
}

}  // namespace

ServerKeys::ServerKeys(MasterToken master, uint32_t version)
    : master_(std::move(master)),
      version_(version),
      controller_(master_.Controller()),
      job_(JobHash(controller_.public_key())) {}

ServerKeys::Judgement ServerKeys::Judge(const ClientHello& hello) const {
  const auto refused = [](Alert alert, std::string reason) {
    return Judgement{.identity = {}, .alert = alert, .reason = std::move(reason)};
  };
  if (!hello.tls13)
    return refused(
        Alert::kProtocolVersion,
        "it is not a weightcast process: it does not offer TLS 1.3; find out what connects from there");
  if (std::ranges::find(hello.protocols, ProtocolName(version_)) == hello.protocols.end())
    return refused(Alert::kNoProtocol,
                   StrCat("it speaks ", VersionsOf(hello), ", this controller protocol version ", version_,
                          "; use the same weightcast on all hosts"));
  if (hello.identity.empty())
    return refused(Alert::kHandshakeFailure,
                   "it is not a weightcast process: it offers no key; find out what connects from there");
  auto identity = ParseIdentity(hello.identity);
  if (!identity || identity->version != version_ || !PurposeOf(identity->member.role))
    return refused(Alert::kUnknownIdentity,
                   "its key has a name of no role; use the same weightcast on all hosts");
  if (identity->job != job_)
    return refused(Alert::kUnknownIdentity,
                   "its token is of another job; give it this job's WEIGHTCAST_TOKEN or setting token_file");
  return {.identity = std::move(identity)};
}

Secret ServerKeys::KeyOf(const Identity& identity) const {
  return master_.Key(PurposeOf(identity.member.role).value_or(Purpose::kObserve), identity.member);
}

Result<ClientKeys> ClientKeysOf(const RoleToken& token, Purpose purpose, uint32_t version) {
  if (purpose != Purpose::kControl && purpose != Purpose::kObserve)
    return Error(Code::kInvalidArgument, "the controller has no stream for '", PurposeName(purpose),
                 "', only for control and observe; please report this as a bug");
  WC_ASSIGN_OR_RETURN(Secret key, token.Key(purpose));
  const Member member = purpose == Purpose::kObserve ? Member{.role = Role::kObserver} : token.member();
  const Identity identity{.version = version, .member = member, .job = JobHash(token.controller())};
  return ClientKeys{
      .identity = IdentityText(identity), .key = std::move(key), .controller = token.controller()};
}

}  // namespace weightcast::stream
