#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "memory/memory.h"
#include "transport/shm/message_codec.h"
#include "weightcast/status.h"

/// The blobs that the endpoint carries and the messages on a link's Unix socket.
namespace weightcast::transport::shm {

/// Shows that whoever presents it has seen the blob that it came in.
using Cookie = std::array<uint64_t, 2>;
Cookie NewCookie();

/// Initiator's offer and responder's answer. The initiator's `name` is empty: it connects.
struct Invitation {
  std::string boot_id;  ///< Different: surely another kernel. Equal: nothing is proven yet.
  std::string name;     ///< Abstract Unix name of the responder's listener.
  Cookie cookie{};
};
std::string Encode(const Invitation& invitation);
Result<Invitation> DecodeInvitation(std::string_view bytes);

struct Hello {
  Cookie cookie{};              ///< The receiver's.
  Incarnation incarnation = 0;  ///< The sender's.
  uint64_t map_nonce = 0;       ///< Stands in the inbox that comes along.
  uint64_t copy_address = 0;    ///< Of the sender's TrialCell.
  uint64_t copy_nonce = 0;      ///< Stands there.
};
inline auto Layout(Hello& m) {
  return LayoutOf(MessageKind::kHello, "hello", m.cookie, m.incarnation, m.map_nonce, m.copy_address,
                  m.copy_nonce);
}
/// What the sender has tried on the receiver's memory: the receiver looks whether it arrived.
struct Trial {
  uint64_t map_echo = 0;
  uint64_t copy_echo = 0;  ///< 0: the copy was refused.
};
inline auto Layout(Trial& m) { return LayoutOf(MessageKind::kTrial, "trial", m.map_echo, m.copy_echo); }
struct Verdict {
  bool map_seen = false;
  bool copy_seen = false;
};
inline auto Layout(Verdict& m) { return LayoutOf(MessageKind::kVerdict, "verdict", m.map_seen, m.copy_seen); }
struct WantRegion {
  uint32_t id = 0;
  uint32_t generation = 0;
};
inline auto Layout(WantRegion& m) {
  return LayoutOf(MessageKind::kWantRegion, "request for a region", m.id, m.generation);
}
struct RegionReply {
  uint32_t id = 0;
  uint32_t generation = 0;
  Code code = Code::kOk;
  uint64_t fd_offset = 0;
  uint64_t length = 0;
};
inline auto Layout(RegionReply& m) {
  return LayoutOf(MessageKind::kRegion, "region", m.id, m.generation, m.code, m.fd_offset, m.length);
}
struct RingReply {
  Code code = Code::kOk;
};
inline auto Layout(RingReply& m) { return LayoutOf(MessageKind::kRing, "payload ring", m.code); }
/// Make me a staging ring to write into, of at most so many bytes.
struct WantStage {
  uint64_t most = 0;
};
bool IsPlausible(const WantStage& message);
inline auto Layout(WantStage& m) {
  return LayoutOf(MessageKind::kWantStage, "request for a staging ring", m.most);
}
struct StageReply {
  Code code = Code::kOk;
  uint64_t length = 0;
};
bool IsPlausible(const StageReply& message);
inline auto Layout(StageReply& m) { return LayoutOf(MessageKind::kStage, "staging ring", m.code, m.length); }
struct Bye {};
inline auto Layout(Bye& /*m*/) { return LayoutOf(MessageKind::kBye, "bye"); }
struct Bell {};
inline auto Layout(Bell& /*m*/) { return LayoutOf(MessageKind::kBell, "bell"); }

}  // namespace weightcast::transport::shm
