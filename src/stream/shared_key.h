#pragma once

#include <string>
#include <string_view>

#include "stream/role.h"
#include "stream/secret.h"
#include "weightcast/status.h"

/// From a token as a user gives it, in whatever place: a master token or a role's. The one rule for all
/// places.
namespace weightcast::stream {

/// Without the line end of a file. Errors: kInvalidArgument, naming the origin, where nothing is left, or
/// more than letters, digits and punctuation.
Result<std::string> CheckTokenText(std::string text, std::string_view origin);

/// The key of kQueue or kPeers, which all have who have the master token or one of a role that has it.
/// Errors: kInvalidArgument for what is no token or a weak one, kPermission for a role without that key. They
/// name the origin and never the text.
Result<Secret> SharedKeyOf(std::string_view text, Purpose purpose, std::string_view origin);

}  // namespace weightcast::stream
