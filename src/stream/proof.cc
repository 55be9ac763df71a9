#include "stream/proof.h"

#include "base/strings.h"

namespace weightcast::stream {
namespace {

std::string Signed(std::string_view exporter) { return StrCat("weightcast controller proof 1|", exporter); }

}  // namespace

Result<std::string> ProveController(const TlsSession& session, const SigningKey& controller) {
  WC_ASSIGN_OR_RETURN(const std::string exporter, session.Exporter());
  std::string proof = controller.Sign(Signed(exporter));
  if (proof.empty())
    return Status(Code::kExhausted, "the controller has no memory for a signature; give the controller more");
  return proof;
}

Status CheckController(const TlsSession& session, std::string_view public_key, std::string_view proof) {
  WC_ASSIGN_OR_RETURN(const std::string exporter, session.Exporter());
  if (HasSigned(public_key, Signed(exporter), proof)) return Status::Ok();
  return {Code::kPermission, "it has the key of the role, but not the controller's"};
}

}  // namespace weightcast::stream
