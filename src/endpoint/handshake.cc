#include "endpoint/handshake.h"

#include <cstring>

#include "base/advice.h"
#include "base/bytes.h"
#include "base/strings.h"

namespace weightcast::endpoint {
namespace {

using transport::Role;

constexpr uint32_t kHandshakeMagic = 0x54534357;  // "WCST"
constexpr size_t kMaxBootId = 64;
// As the settings allow.
constexpr uint64_t kMinChunk = 4096;
constexpr uint64_t kMaxChunk = 64U << 20;
constexpr Duration kMaxLease = std::chrono::seconds(1'000'000'000);

std::string_view Raw(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// For messages: the identity as the peer claims it, fit to be printed.
std::string Claimed(const Identity& identity) { return Printable(ToString(identity), 200); }

/// Read on both sides.
Status Missing(Key::Of of, const std::string& who, const std::string& other) {
  if (of == Key::Of::kJob)
    return Error(Code::kPermission, who, " does not know the job token of ", other,
                 "; give both the same WEIGHTCAST_TOKEN or setting token_file");
  return Error(Code::kPermission, who, " does not have the key that the controller gives to it and ", other,
               " with their plan; it may be another process than it claims to be: check what runs at its "
               "address");
}

}  // namespace

std::string EncodeHello(const Hello& hello) {
  const Identity& self = hello.identity;
  return PackBytes(kHandshakeMagic, hello.version, hello.port, self.job, self.role, self.engine, self.rank,
                   self.incarnation, hello.boot_id.substr(0, kMaxBootId), hello.chunk,
                   static_cast<uint64_t>(hello.lease.count()), hello.nonce);
}

Result<Hello> ParseHello(std::string_view payload) {
  ByteReader in(payload);
  if (in.Get<uint32_t>() != kHandshakeMagic) {
    return Status(Code::kProtocol, "the other side is not a weightcast endpoint; check what runs there");
  }
  Hello hello;
  hello.version = in.Get<uint16_t>();
  if (in.ok() && hello.version != kProtocolVersion) {
    return Error(Code::kProtocol, "one side speaks protocol version ", hello.version, ", the other ",
                 kProtocolVersion, "; run the same release of weightcast on both");
  }
  hello.port = in.Get<uint16_t>();
  hello.identity.job = in.GetString(kMaxName);
  hello.identity.role = in.GetString(kMaxName);
  hello.identity.engine = in.GetString(kMaxName);
  in.Get(hello.identity.rank, hello.identity.incarnation);
  hello.boot_id = in.GetString(kMaxBootId);
  uint64_t lease = 0;
  in.Get(hello.chunk, lease, hello.nonce);
  if (!in.AtEnd() || hello.identity.incarnation == 0)
    return Error(Code::kProtocol, "the other side's first message (hello) is malformed", kSameRelease);
  if (hello.chunk < kMinChunk || hello.chunk > kMaxChunk || lease == 0 ||
      lease > static_cast<uint64_t>(kMaxLease.count())) {
    return Error(Code::kProtocol, "the other side's first message (hello) has chunk ", hello.chunk,
                 " and lease ", lease, " ns; they must be in [", kMinChunk, ", ", kMaxChunk, "] and [1, ",
                 kMaxLease.count(), "]", kSameRelease);
  }
  hello.lease = Duration(lease);
  return hello;
}

bool Matches(const Identity& expected, const Identity& actual) {
  if (!expected.job.empty() && expected.job != actual.job) return false;
  if (expected.incarnation != 0 && expected.incarnation != actual.incarnation) return false;
  if (expected.role.empty()) return true;
  return expected.role == actual.role && expected.engine == actual.engine && expected.rank == actual.rank;
}

Handshaker::Handshaker(Role role, Hello mine, FindKey find_key, Identity expected)
    : role_(role),
      mine_(std::move(mine)),
      find_key_(std::move(find_key)),
      expected_(std::move(expected)),
      my_hello_(EncodeHello(mine_)) {}

Message Handshaker::Start() const { return {MessageType::kHello, my_hello_}; }

std::vector<Message> Handshaker::OnMessage(const Message& message) {
  if (state_ == State::kFailed) return {};
  switch (message.type) {
    case MessageType::kHello:
      if (state_ == State::kGreeting) return OnHello(message);
      break;
    case MessageType::kProof:
      if (state_ == State::kProving) return OnProof(message);
      break;
    case MessageType::kVerdict:
      return OnVerdict(message);
    default:
      break;
  }
  if (state_ == State::kGreeting) {
    return Fail({Code::kProtocol, "the other side is not a weightcast endpoint; check what runs there"});
  }
  return Fail(Error(Code::kProtocol, "the other side sent a handshake message out of turn", kSameRelease));
}

std::vector<Message> Handshaker::OnHello(const Message& message) {
  auto hello = ParseHello(message.payload);
  if (!hello.ok()) return Fail(hello.status());
  peer_ = std::move(hello).value();
  peer_hello_ = message.payload;
  if (Status status = CheckPeer(); !status.ok()) return Fail(std::move(status));
  key_ = find_key_(peer_->identity);
  state_ = State::kProving;
  // The responder proves nothing before the initiator has.
  return {role_ == Role::kInitiator ? MyProof() : Start()};
}

Status Handshaker::CheckPeer() const {
  const Identity& peer = peer_->identity;
  if (peer.job != mine_.identity.job) {
    return Error(Code::kPermission, Claimed(mine_.identity), " is of job '", mine_.identity.job, "' and ",
                 Claimed(peer), " of job '", Printable(peer.job, kMaxName),
                 "'; give both the same WEIGHTCAST_JOB");
  }
  if (peer.incarnation == mine_.identity.incarnation) {
    return {Code::kInvalidArgument, "an endpoint cannot connect to itself; give the address of another one"};
  }
  if (role_ == Role::kInitiator && !Matches(expected_, peer)) {
    const bool restarted =
        Matches({expected_.job, expected_.role, expected_.engine, expected_.rank, 0}, peer);
    if (!restarted)
      return Error(Code::kUnavailable, "expected ", ToString(expected_), " but ", Claimed(peer),
                   " answers; check the address");
    return Error(Code::kUnavailable, Claimed(peer), " has restarted: expected incarnation ",
                 expected_.incarnation, ", found ", peer.incarnation,
                 "; check where the new process listens and connect to it (an update: publish again)");
  }
  return Status::Ok();
}

std::vector<Message> Handshaker::OnProof(const Message& message) {
  const Role peer_role = role_ == Role::kInitiator ? Role::kResponder : Role::kInitiator;
  Digest proof{};
  if (message.payload.size() != proof.size())
    return Fail(Error(Code::kProtocol, "the other side's proof is malformed", kSameRelease));
  std::memcpy(proof.data(), message.payload.data(), proof.size());
  if (!SameDigest(proof, ProofOf(peer_role))) {
    return Fail(Missing(key_.of, Claimed(peer_->identity), Claimed(mine_.identity)));
  }
  state_ = State::kProven;
  if (role_ == Role::kInitiator) return {};
  return {MyProof()};
}

std::vector<Message> Handshaker::OnVerdict(const Message& message) {
  auto verdict = ParseOutcome(message.payload);
  if (!verdict) return Fail(Error(Code::kProtocol, "the other side's verdict is malformed", kSameRelease));
  if (!verdict->ok()) {
    // Anyone can say it; who has proven nothing must not make a caller wait.
    superseded_ = state_ == State::kProven && verdict->code() == Code::kCancelled;
    state_ = State::kFailed;
    failure_ = Error(verdict->code(), "it refuses this process: ", verdict->message());
    return {};
  }
  // Accepted without having been asked, or twice.
  const bool in_turn =
      state_ == State::kProven && !peer_accepted_ && (role_ == Role::kInitiator || accepted_);
  if (!in_turn)
    return Fail(Error(Code::kProtocol, "the other side sent its verdict out of turn", kSameRelease));
  peer_accepted_ = true;
  if (accepted_) state_ = State::kAccepted;
  return {};
}

Message Handshaker::Accept() {
  accepted_ = true;
  if (peer_accepted_) state_ = State::kAccepted;
  return {MessageType::kVerdict, EncodeOutcome(Status::Ok())};
}

Message Handshaker::Refuse(Status reason) {
  state_ = State::kFailed;
  failure_ = std::move(reason);
  return {MessageType::kVerdict, EncodeOutcome(failure_)};
}

std::vector<Message> Handshaker::Fail(Status reason) { return {Refuse(std::move(reason))}; }

Digest Handshaker::ProofOf(Role role) const {
  ByteWriter text;
  text.PutRaw(role == Role::kInitiator ? "weightcast handshake 1 initiator"
                                       : "weightcast handshake 1 responder");
  const bool mine_first = role_ == Role::kInitiator;
  text.Put(mine_first ? my_hello_ : peer_hello_, mine_first ? peer_hello_ : my_hello_);
  return HmacSha256(key_.bytes, text.bytes());
}

Message Handshaker::MyProof() const { return {MessageType::kProof, std::string(Raw(ProofOf(role_)))}; }

}  // namespace weightcast::endpoint
