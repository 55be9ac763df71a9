#include "protocol/identity.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/random.h"

namespace weightcast::protocol {

std::string NewSecret() {
  std::string secret(kSecretBytes, '\0');
  FillRandom(std::as_writable_bytes(std::span(secret)));
  return secret;
}

Incarnation IncarnationOf(std::string_view secret) {
  const Digest digest = HmacSha256(secret, "weightcast incarnation 1");
  Incarnation incarnation = 0;
  std::memcpy(&incarnation, digest.data(), sizeof incarnation);
  return std::max<Incarnation>(incarnation, 1);
}

std::string PairKey(std::string_view secret, const Identity& initiator) {
  ByteWriter text;
  text.PutRaw("weightcast pair 1");
  text.Put(initiator.job, initiator.role, initiator.engine, initiator.rank, initiator.incarnation);
  const Digest digest = HmacSha256(secret, text.bytes());
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string_view RoleText(Role role) { return role == Role::kTrainer ? "trainer" : "inference"; }

Identity IdentityOf(std::string_view job, const WorkerName& name, Incarnation incarnation) {
  return {.job = std::string(job),
          .role = std::string(RoleText(name.role)),
          .engine = name.engine,
          .rank = name.rank,
          .incarnation = incarnation};
}

}  // namespace weightcast::protocol
