#include "endpoint/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "base/bytes.h"
#include "base/random.h"

namespace weightcast::endpoint {
namespace {

using ::testing::HasSubstr;
using transport::Role;
using State = Handshaker::State;

Hello HelloOf(const Identity& identity) {
  Hello hello{.port = 4711,
              .identity = identity,
              .boot_id = "boot",
              .chunk = 1 << 20,
              .lease = std::chrono::seconds(2)};
  FillRandom(hello.nonce);
  return hello;
}

FindKey Token(const std::string& token) {
  return [token](const Identity&) { return Key{Key::Of::kJob, token}; };
}

const Identity kTrainer{"job", "trainer", "", 0, 11};
const Identity kEngine{"job", "inference", "rollout", 1, 22};

/// Two sides and what passes between them.
struct Talk {
  explicit Talk(const std::string& i_token = "secret", const std::string& r_token = "secret",
                const Identity& expected = kEngine, const Identity& i_is = kTrainer,
                const Identity& r_is = kEngine)
      : initiator(Role::kInitiator, HelloOf(i_is), Token(i_token), expected),
        responder(Role::kResponder, HelloOf(r_is), Token(r_token)) {}

  /// Delivers until nobody has anything to say; `change` may alter what passes.
  void Run(const std::function<void(Message&)>& change = {}) {
    std::vector<Message> to_responder = {initiator.Start()};
    std::vector<Message> to_initiator;
    while (!to_responder.empty() || !to_initiator.empty()) {
      Deliver(to_responder, responder, to_initiator, change);
      Deliver(to_initiator, initiator, to_responder, change);
    }
  }
  void Deliver(std::vector<Message>& in, Handshaker& side, std::vector<Message>& out,
               const std::function<void(Message&)>& change) {
    for (Message& message : std::exchange(in, {})) {
      if (change) change(message);
      log.push_back(message);
      for (Message& answer : side.OnMessage(message)) out.push_back(std::move(answer));
    }
    const bool may_accept = &side == &responder || side.peer_accepted();
    if (side.state() == State::kProven && may_accept && !said.contains(&side)) {
      said.insert(&side);
      out.push_back(side.Accept());
    }
  }

  Handshaker initiator;
  Handshaker responder;
  std::set<const Handshaker*> said;
  std::vector<Message> log;
};

TEST(Handshake, BothSidesEndUpProven) {
  Talk talk;
  talk.Run();
  EXPECT_EQ(talk.initiator.state(), State::kAccepted);
  EXPECT_EQ(talk.responder.state(), State::kAccepted);
  EXPECT_EQ(talk.initiator.peer()->identity, kEngine);
  EXPECT_EQ(talk.responder.peer()->identity, kTrainer);
  EXPECT_EQ(talk.responder.peer()->port, 4711);
  EXPECT_EQ(talk.responder.peer()->chunk, 1U << 20);
  EXPECT_EQ(talk.log.size(), 6U);
}

TEST(Handshake, NeitherProofIsWorthAnythingElsewhere) {
  Talk first;
  first.Run();
  std::vector<std::string> proofs;
  for (const Message& message : first.log) {
    if (message.type == MessageType::kProof) proofs.push_back(message.payload);
  }
  ASSERT_EQ(proofs.size(), 2U);
  EXPECT_NE(proofs[0], proofs[1]);  // The same nonces, another role.
  // Replayed in a later handshake of the same two.
  for (const std::string& old : proofs) {
    Talk again;
    again.Run([&](Message& message) {
      if (message.type == MessageType::kProof) message.payload = old;
    });
    EXPECT_EQ(again.responder.state(), State::kFailed);
    EXPECT_EQ(again.responder.failure().code(), Code::kPermission);
    EXPECT_EQ(again.initiator.state(), State::kFailed);
  }
}

TEST(Handshake, OwnMessagesReflectedAreRefused) {
  Handshaker initiator(Role::kInitiator, HelloOf(kTrainer), Token("secret"));
  initiator.OnMessage(initiator.Start());
  EXPECT_EQ(initiator.state(), State::kFailed);
  EXPECT_THAT(initiator.failure().message(), HasSubstr("cannot connect to itself"));
  // A mirror that changes the identity, and hands back the proof.
  Handshaker victim(Role::kInitiator, HelloOf(kTrainer), Token("secret"));
  const auto proof = victim.OnMessage({MessageType::kHello, EncodeHello(HelloOf(kEngine))});
  ASSERT_EQ(proof.size(), 1U);
  victim.OnMessage(proof[0]);
  EXPECT_EQ(victim.state(), State::kFailed);
  EXPECT_EQ(victim.failure().code(), Code::kPermission);
}

TEST(Handshake, AnyBitChangedOnTheWayIsNoticed) {
  // The messages that carry meaning: both hellos and both proofs.
  for (size_t which = 0; which < 4; ++which) {
    for (int round = 0; round < 40; ++round) {
      Talk talk;
      size_t count = 0;
      std::mt19937 random(static_cast<uint32_t>(which * 100 + round));
      talk.Run([&](Message& message) {
        if (count++ == which)
          message.payload[random() % message.payload.size()] ^= static_cast<char>(1 << (random() % 8));
      });
      EXPECT_NE(talk.initiator.state(), State::kAccepted) << which;
      EXPECT_NE(talk.responder.state(), State::kAccepted) << which;
    }
  }
}

TEST(Handshake, AWrongTokenIsSaidToBoth) {
  Talk talk("mine", "yours");
  talk.Run();
  for (const Handshaker* side : {&talk.initiator, &talk.responder}) {
    EXPECT_EQ(side->state(), State::kFailed);
    EXPECT_EQ(side->failure().code(), Code::kPermission);
    EXPECT_THAT(side->failure().message(),
                HasSubstr("trainer 0 does not know the job token of engine rollout rank 1"));
  }
  // The responder, who proves nothing to a stranger, has sent no proof.
  EXPECT_EQ(std::count_if(talk.log.begin(), talk.log.end(),
                          [](const Message& m) { return m.type == MessageType::kProof; }),
            1);
}

TEST(Handshake, AResponderWithoutTheTokenIsFoundOut) {
  // One that lies about having checked ours.
  Handshaker initiator(Role::kInitiator, HelloOf(kTrainer), Token("secret"), kEngine);
  initiator.OnMessage({MessageType::kHello, EncodeHello(HelloOf(kEngine))});
  const auto answer = initiator.OnMessage({MessageType::kProof, std::string(32, 'x')});
  EXPECT_EQ(initiator.state(), State::kFailed);
  ASSERT_EQ(answer.size(), 1U);
  EXPECT_EQ(ParseOutcome(answer[0].payload)->code(), Code::kPermission);
}

TEST(Handshake, JobsVersionsAndRanksAreSaidToBoth) {
  const auto refused = [](const Status& why) {
    return Status(why.code(), "it refuses this process: " + why.message());
  };
  Identity other_job = kEngine;
  other_job.job = "another";
  Talk jobs("t", "t", {}, kTrainer, other_job);
  jobs.Run();
  EXPECT_EQ(jobs.initiator.failure().code(), Code::kPermission);
  EXPECT_EQ(jobs.initiator.failure(), refused(jobs.responder.failure()));

  Identity expected = kEngine;
  expected.rank = 7;
  Talk ranks("t", "t", expected);
  ranks.Run();
  EXPECT_THAT(ranks.initiator.failure().message(),
              HasSubstr("expected engine rollout rank 7 but engine rollout rank 1"));
  EXPECT_EQ(refused(ranks.initiator.failure()), ranks.responder.failure());

  Hello future = HelloOf(kTrainer);
  future.version = 9;
  Handshaker responder(Role::kResponder, HelloOf(kEngine), Token("t"));
  const auto answer = responder.OnMessage({MessageType::kHello, EncodeHello(future)});
  EXPECT_EQ(responder.failure().code(), Code::kProtocol);
  EXPECT_THAT(responder.failure().message(), HasSubstr("protocol version 9, the other 2"));
  EXPECT_EQ(*ParseOutcome(answer.at(0).payload), responder.failure());
}

TEST(Handshake, OutOfTurnIsRefused) {
  const Message verdict{MessageType::kVerdict, EncodeOutcome(Status::Ok())};
  const Message proof{MessageType::kProof, std::string(32, 'x')};
  const auto refuses = [](Role role, const std::vector<Message>& messages) {
    Handshaker side(role, HelloOf(kEngine), Token("secret"));
    for (const Message& message : messages) side.OnMessage(message);
    return side.state() == State::kFailed;
  };
  const Message hello{MessageType::kHello, EncodeHello(HelloOf(kTrainer))};
  for (const Role role : {Role::kInitiator, Role::kResponder}) {
    EXPECT_TRUE(refuses(role, {verdict}));
    EXPECT_TRUE(refuses(role, {proof}));
    EXPECT_TRUE(refuses(role, {hello, hello}));
    EXPECT_TRUE(refuses(role, {hello, verdict}));
    EXPECT_TRUE(refuses(role, {{MessageType::kHeartbeat, ""}}));
    EXPECT_TRUE(refuses(role, {hello, {MessageType::kProof, "short"}}));
    EXPECT_TRUE(refuses(role, {{MessageType::kVerdict, "x"}}));
  }
}

TEST(Handshake, SupersededIsNoOrdinaryRefusal) {
  const Message superseded{MessageType::kVerdict, EncodeOutcome({Code::kCancelled, "superseded"})};
  Handshaker side(Role::kInitiator, HelloOf(kTrainer), Token("secret"));
  Handshaker peer(Role::kResponder, HelloOf(kEngine), Token("secret"));
  const auto hello = peer.OnMessage(side.Start());
  const auto proof = peer.OnMessage(side.OnMessage(hello.at(0)).at(0));
  side.OnMessage(proof.at(0));
  ASSERT_EQ(side.state(), State::kProven);
  side.OnMessage(superseded);
  EXPECT_EQ(side.state(), State::kFailed);
  EXPECT_TRUE(side.superseded());

  // Who has proven nothing must not make anyone wait for a connection.
  Handshaker early(Role::kInitiator, HelloOf(kTrainer), Token("secret"));
  early.OnMessage(superseded);
  EXPECT_FALSE(early.superseded());
  Handshaker unproven(Role::kInitiator, HelloOf(kTrainer), Token("secret"));
  unproven.OnMessage(hello.at(0));
  unproven.OnMessage(superseded);
  EXPECT_EQ(unproven.state(), State::kFailed);
  EXPECT_FALSE(unproven.superseded());
}

TEST(Handshake, HellosAreParsedWithinLimits) {
  const Hello hello = HelloOf(kTrainer);
  const std::string bytes = EncodeHello(hello);
  const auto parsed = ParseHello(bytes);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->identity, hello.identity);
  EXPECT_EQ(parsed->nonce, hello.nonce);
  EXPECT_EQ(parsed->boot_id, "boot");
  EXPECT_EQ(parsed->chunk, 1U << 20);
  EXPECT_EQ(parsed->lease, std::chrono::seconds(2));
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(ParseHello(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(ParseHello(bytes + "x").ok());
  Hello big = hello;
  big.identity.engine = std::string(kMaxName + 1, 'x');
  EXPECT_FALSE(ParseHello(EncodeHello(big)).ok());
  Hello nobody = hello;
  nobody.identity.incarnation = 0;
  EXPECT_FALSE(ParseHello(EncodeHello(nobody)).ok());
  for (const uint64_t chunk : {uint64_t{0}, uint64_t{4095}, (uint64_t{64} << 20) + 1, UINT64_MAX}) {
    Hello odd = hello;
    odd.chunk = chunk;
    EXPECT_EQ(ParseHello(EncodeHello(odd)).status().code(), Code::kProtocol) << chunk;
  }
  for (const Duration lease : {Duration(0), Duration(-1), Duration(FromSeconds(1e9) + Duration(1))}) {
    Hello odd = hello;
    odd.lease = lease;
    EXPECT_EQ(ParseHello(EncodeHello(odd)).status().code(), Code::kProtocol) << lease.count();
  }
  EXPECT_THAT(ParseHello("SSH-2.0-OpenSSH_9.2").status().message(), HasSubstr("not a weightcast endpoint"));
}

TEST(Handshake, TextFromStrangersIsMadePrintable) {
  Identity rude = kTrainer;
  rude.role = "\x1b[31mred\n";
  Talk talk("a", "b", {}, rude);
  talk.Run();
  EXPECT_THAT(talk.responder.failure().message(), HasSubstr("?[31mred? 0"));
  EXPECT_EQ(ParseOutcome(EncodeOutcome({Code::kFenced, "tab\there"}))->message(), "tab?here");
  EXPECT_EQ(ParseOutcome(EncodeOutcome({Code::kFenced, std::string(5000, 'x')}))->message().size(),
            kMaxReason);
  EXPECT_FALSE(ParseOutcome("").has_value());
  EXPECT_FALSE(ParseOutcome(std::string("\x63\0\0\0\0", 5)).has_value());
}

TEST(Handshake, MatchesWhatIsAskedFor) {
  EXPECT_TRUE(Matches({}, kTrainer));
  EXPECT_TRUE(Matches(kTrainer, kTrainer));
  EXPECT_TRUE(Matches({"job", "trainer", "", 0, 0}, kTrainer));
  EXPECT_FALSE(Matches({"other", "trainer", "", 0, 0}, kTrainer));
  EXPECT_FALSE(Matches({"job", "trainer", "", 1, 0}, kTrainer));
  EXPECT_FALSE(Matches({"job", "trainer", "e", 0, 0}, kTrainer));
  EXPECT_FALSE(Matches({"job", "inference", "", 0, 0}, kTrainer));
  EXPECT_FALSE(Matches({"", "", "", 0, 12}, kTrainer));
  EXPECT_TRUE(Matches({"", "", "", 5, 11}, kTrainer));
}

}  // namespace
}  // namespace weightcast::endpoint
