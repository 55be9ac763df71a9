#pragma once

#include <string>
#include <string_view>

#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// The secret that all processes of a job share.
struct Token {
  std::string secret;
  bool configured =
      false;           ///< By WEIGHTCAST_TOKEN or token_file; otherwise the user's own, for loopback only.
  std::string origin;  ///< "WEIGHTCAST_TOKEN", or the path of the file; for messages.
};

/// WEIGHTCAST_TOKEN; else the file that the setting token_file names; else the user's own file
/// ($XDG_RUNTIME_DIR/weightcast/token or /tmp/weightcast-<uid>/token; where another user has made that
/// folder, $XDG_CACHE_HOME/weightcast/token or ~/.cache/weightcast/token), which whoever comes first fills
/// with a random token, atomically, so that controllers and workers may start in any order. Errors:
/// kInvalidArgument for a file that cannot be read or has no token; kPermission when other users could have
/// read or written it.
Result<Token> LoadToken(const Settings& settings);

/// What the place that `token` came from holds now. Makes no file and looks at no environment: any thread.
Result<Token> ReadTokenAgain(const Token& token);

/// Compares in constant time.
bool SameToken(std::string_view a, std::string_view b);

}  // namespace weightcast::control
