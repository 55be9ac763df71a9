#include "stream/role.h"

#include <array>

#include "base/strings.h"
#include "stream/encoding.h"

namespace weightcast::stream {
namespace {

struct RoleRow {
  Role role;
  std::string_view name;
  std::vector<Purpose> purposes;
};

const std::array<RoleRow, 4>& Table() {
  using enum Purpose;
  static const std::array<RoleRow, 4> table = {{
      {Role::kTrainer, "trainer", {kControl, kObserve, kQueue, kPeers}},
      {Role::kInference, "inference", {kControl, kObserve, kQueue, kPeers}},
      {Role::kObserver, "observer", {kObserve}},
      {Role::kPeer, "peer", {kPeers}},
  }};
  return table;
}

const RoleRow& RowOf(Role role) { return Table()[static_cast<size_t>(role)]; }

}  // namespace

std::string_view RoleName(Role role) { return RowOf(role).name; }
const std::vector<Purpose>& PurposesOf(Role role) { return RowOf(role).purposes; }

std::string_view PurposeName(Purpose purpose) {
  static constexpr std::array<std::string_view, 4> kNames = {"control", "observe", "queue", "peers"};
  return kNames[static_cast<size_t>(purpose)];
}

bool Covers(const Member& held, const Member& process) {
  return held.role == process.role && (held.engine.empty() || held.engine == process.engine);
}

std::string MemberText(const Member& member) {
  return member.engine.empty() ? std::string(RoleName(member.role))
                               : StrCat(RoleName(member.role), "/", Escape(member.engine));
}

std::optional<Member> ParseMember(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string_view name = text.substr(0, slash);
  for (const RoleRow& row : Table()) {
    if (row.name != name) continue;
    Member member{.role = row.role};
    if (slash == std::string_view::npos) return member;
    auto engine = Unescape(text.substr(slash + 1));
    if (!engine || engine->empty()) return std::nullopt;
    member.engine = std::move(*engine);
    if (!CheckMember(member).ok()) return std::nullopt;
    return member;
  }
  return std::nullopt;
}

Status CheckMember(const Member& member) {
  if (!member.engine.empty() && member.role != Role::kInference)
    return Error(Code::kInvalidArgument, "only tokens of the role inference name an engine, not those of ",
                 RoleName(member.role), "; leave the engine out");
  if (const size_t size = Escape(member.engine).size(); size > kMostEngineBytes)
    return Error(Code::kInvalidArgument, "the engine's name is too long for a token: ", size,
                 " bytes, at most ", kMostEngineBytes,
                 ", where three stand for each special character; shorten it");
  return Status::Ok();
}

}  // namespace weightcast::stream
