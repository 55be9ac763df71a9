#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "protocol/types.h"
#include "stream/secret.h"
#include "stream/token.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// What a process has of the job's keys (docs/streams.md, "Keys"): the master token, or the token of a role.
/// Immutable.
class Token {
 public:
  /// `origin`: "WEIGHTCAST_TOKEN", or the path of a file. `configured`: the user has chosen it; otherwise it
  /// is the user's own, for loopback only. Errors: kInvalidArgument, naming the origin; never the text.
  static Result<Token> Parse(std::string_view text, bool configured, std::string origin);

  [[nodiscard]] bool configured() const { return configured_; }
  [[nodiscard]] const std::string& origin() const { return origin_; }
  /// As it was given: for an endpoint.
  [[nodiscard]] std::string text() const { return std::string(text_.bytes()); }
  /// Errors, of all below: kPermission, naming the origin, where this is a role's token without that key.
  /// The controller's.
  [[nodiscard]] Result<stream::MasterToken> Master() const;
  /// For a worker's stream.
  [[nodiscard]] Result<stream::RoleToken> ForWorker(const stream::Member& member) const;
  /// For watching the controller.
  [[nodiscard]] Result<stream::RoleToken> ForObserver() const;
  /// What all have who share the purpose: kQueue or kPeers.
  [[nodiscard]] Result<std::string> SharedKey(stream::Purpose purpose) const;

  friend bool operator==(const Token& a, const Token& b) { return a.text_ == b.text_; }

 private:
  Token(std::variant<stream::MasterToken, stream::RoleToken> keys, std::string_view text, bool configured,
        std::string origin)
      : keys_(std::move(keys)), text_(text), configured_(configured), origin_(std::move(origin)) {}
  std::variant<stream::MasterToken, stream::RoleToken> keys_;
  stream::Secret text_;
  bool configured_;
  std::string origin_;
};

/// WEIGHTCAST_TOKEN; else the file that the setting token_file names; else the user's own file
/// ($XDG_RUNTIME_DIR/weightcast/token or /tmp/weightcast-<uid>/token; where another user has made that
/// folder, $XDG_CACHE_HOME/weightcast/token or ~/.cache/weightcast/token), which the first process fills
/// with a random token, atomically, so that controllers and workers may start in any order. Errors:
/// kInvalidArgument for a file that cannot be read or a token that is none or too weak; kPermission when
/// other users could have read or written it.
Result<Token> LoadToken(const Settings& settings);

/// What the place that `token` came from holds now. Makes no file and looks at no environment: any thread.
Result<Token> ReadTokenAgain(const Token& token);

/// The member that a worker of this name is: an EngineControl speaks for its engine.
stream::Member MemberOf(const protocol::WorkerName& name);

}  // namespace weightcast::control
