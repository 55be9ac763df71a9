#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stream/role.h"
#include "stream/secret.h"
#include "stream/signature.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// The job's master token: whoever has it can do everything in the job. All other keys derive from it.
class MasterToken {
 public:
  static constexpr size_t kLeastBytes = 16;
  /// Any text that can hold 16 random bytes: hexadecimal digits count as half a byte, those of base64 as
  /// three quarters. Errors: kInvalidArgument; the text is not in it.
  static Result<MasterToken> Parse(std::string_view text);

  /// The key of a purpose. kControl: of this member; the others are the same for all.
  [[nodiscard]] Secret Key(Purpose purpose, const Member& member) const;
  [[nodiscard]] SigningKey Controller() const;

 private:
  explicit MasterToken(Secret secret) : secret_(std::move(secret)) {}
  Secret secret_;
};

/// What a process of one role has: its keys, and how it recognises the controller.
class RoleToken {
 public:
  /// Errors: kInvalidArgument for an engine of a role that has none.
  static Result<RoleToken> Derive(const MasterToken& master, const Member& member);
  /// wct1:<role>[/<engine>]:<keys>:<controller's public key>. Errors: kInvalidArgument; the text is not in
  /// it.
  static Result<RoleToken> Parse(std::string_view text);
  /// Whether it looks like a role token, and not like a master token.
  static bool IsOne(std::string_view text);
  /// The text; the one place where keys are printed.
  [[nodiscard]] Secret Print() const;

  [[nodiscard]] const Member& member() const { return member_; }
  [[nodiscard]] const std::string& controller() const { return controller_; }  ///< Public key.
  /// Errors: kPermission, naming the role, where it has no such key.
  [[nodiscard]] Result<Secret> Key(Purpose purpose) const;

 private:
  RoleToken() = default;
  Member member_;
  std::vector<Secret> keys_;  ///< In the order of PurposesOf.
  std::string controller_;
};

}  // namespace weightcast::stream
