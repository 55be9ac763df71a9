#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/status.h"

namespace weightcast::stream {

/// What a process may be in a job.
enum class Role : uint8_t { kTrainer, kInference, kObserver, kPeer };
/// What a key is for.
enum class Purpose : uint8_t {
  kControl,  ///< A worker's stream to the controller. Each role and engine has its own.
  kObserve,  ///< Watching the controller (`weightcast info`).
  kQueue,    ///< The rollout queue.
  kPeers,    ///< p2p and collectives.
};

std::string_view RoleName(Role role);
std::string_view PurposeName(Purpose purpose);
/// The keys of a role, in the order in which its token has them. The one table of who may do what.
const std::vector<Purpose>& PurposesOf(Role role);

/// A role, of one engine where the token says so.
struct Member {
  Role role = Role::kObserver;
  std::string engine = {};  ///< Of kInference only; empty: any.
  friend bool operator==(const Member&, const Member&) = default;
};

/// Whether a token of `held` is one for a process that is `process`: of the same role, and of the engine
/// where the token names one.
bool Covers(const Member& held, const Member& process);

/// Of an engine's name, escaped: the first message of a handshake must hold it.
inline constexpr size_t kMostEngineBytes = 512;

/// "trainer", "inference/a".
std::string MemberText(const Member& member);
/// nullopt: no such role, or an engine where there can be none.
std::optional<Member> ParseMember(std::string_view text);
/// Errors: kInvalidArgument for an engine of a role that has none, or a name too long.
Status CheckMember(const Member& member);

}  // namespace weightcast::stream
