#pragma once

#include <string>
#include <string_view>

#include "stream/signature.h"
#include "stream/tls.h"
#include "weightcast/status.h"

/// How a controller shows that it is one, to clients whose key others have as well: it signs what only the
/// two ends of this session have.
namespace weightcast::stream {

Result<std::string> ProveController(const TlsSession& session, const SigningKey& controller);
/// Errors: kPermission.
Status CheckController(const TlsSession& session, std::string_view public_key, std::string_view proof);

}  // namespace weightcast::stream
