#include "stream/explain.h"

#include "base/strings.h"
#include "stream/client_hello.h"

namespace weightcast::stream {
namespace {

constexpr std::string_view kSameVersion = "use the same weightcast on all hosts";

Status NoController(std::string_view address, std::string_view seen) {
  return Error(Code::kProtocol, "what listens at ", address, " is not a weightcast controller: ", seen,
               "; check the address");
}

Status ExplainAlert(int alert, std::string_view address) {
  switch (static_cast<Alert>(alert)) {
    case Alert::kNoProtocol:
      return Error(Code::kProtocol, "the controller at ", address,
                   " speaks another version of the protocol; ", kSameVersion);
    case Alert::kUnknownIdentity:
      return Error(Code::kPermission, "the controller at ", address,
                   " does not know this token: it is of another job; give both the same "
                   "WEIGHTCAST_TOKEN or setting token_file, or check the address");
    case Alert::kIllegalParameter:
    case Alert::kDecryptError:
      return Error(Code::kPermission, "the controller at ", address,
                   " refuses this token: its key is wrong; make the role token again "
                   "from the job's token with `weightcast token --role ROLE`");
    default:
      return NoController(address, StrCat("it refuses TLS as weightcast speaks it (alert ", alert, ")"));
  }
}

}  // namespace

Status ExplainConnect(const Status& why) {
  const size_t advice = why.message().find("; check ");
  if (why.code() != Code::kUnavailable || advice == std::string::npos) return why;
  return Error(why.code(), why.message().substr(0, advice),
               "; check that the controller runs, the address and the firewall");
}

Status ExplainImpostor(std::string_view address, std::string_view why) {
  return Error(Code::kPermission, "what listens at ", address, " does not prove to be the controller: ", why,
               "; stop that process, or correct the address");
}

Status ExplainHandshake(const Connection& connection, std::string_view address) {
  const TlsFailure& failure = connection.tls().failure();
  if (IsHttp2Server(connection.opening()))
    return Error(Code::kProtocol, "what listens at ", address,
                 " speaks HTTP/2, as the controller of an older release does; ", kSameVersion);
  switch (failure.kind) {
    case TlsFailure::Kind::kAlert:
      return ExplainAlert(failure.alert, address);
    case TlsFailure::Kind::kUnproven:
      return ExplainImpostor(address, StrCat("it does not have the token's key (", failure.text, ")"));
    case TlsFailure::Kind::kNotTls:
      return NoController(address, StrCat("it does not speak TLS 1.3 (", failure.text, ")"));
    case TlsFailure::Kind::kBroken:
      return NoController(address, StrCat("its answer is malformed (", failure.text, ")"));
    case TlsFailure::Kind::kNone:
      break;
  }
  if (connection.opening().empty() && connection.end().code() == Code::kUnavailable)
    return Error(Code::kUnavailable, "what listens at ", address,
                 " ended the connection without a reason (it is ending, is of an older release, or is "
                 "another program); check the address, and ",
                 kSameVersion);
  return {connection.end().ok() ? Code::kUnavailable : connection.end().code(),
          StrCat("the handshake with the controller at ", address, " broke off: ",
                 connection.end().ok() ? "it cannot be written to; see the controller's log"
                                       : connection.end().message())};
}

}  // namespace weightcast::stream
