#include "stream/token.h"

#include <gmock/gmock.h>

#include <set>

#include "base/random.h"
#include "fixture.h"
#include "stream/encoding.h"
#include "stream/library.h"

namespace weightcast::stream {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<Member>& Members() {
  static const std::vector<Member> members = {{Role::kTrainer},        {Role::kInference},
                                              {Role::kInference, "a"}, {Role::kInference, "b/c:d %"},
                                              {Role::kObserver},       {Role::kPeer}};
  return members;
}

std::string TextOf(const RoleToken& token) { return std::string(token.Print().bytes()); }

TEST(Secret, ComparesAndMovesAndLeavesNothing) {
  Secret one("some secret bytes");
  const Secret same("some secret bytes");
  EXPECT_EQ(one, same);
  EXPECT_FALSE(one == Secret("some secret byteS"));
  EXPECT_FALSE(one == Secret("some"));
  const Secret moved = std::move(one);
  EXPECT_EQ(moved, same);
  EXPECT_TRUE(one.empty());  // NOLINT(bugprone-use-after-move)
  std::string text = "secret";
  const char* const at = text.data();
  {
    const CleansedAtEnd cleansed(text);
  }
  EXPECT_TRUE(text.empty());
  EXPECT_EQ(std::string_view(at, 6), std::string_view("\0\0\0\0\0\0", 6));
}

TEST(DeriveKey, IsHkdfOfRfc5869) {
  // Test case 3: no salt, no info; the first 32 bytes.
  const Secret key = DeriveKey(Secret(std::string(22, '\x0b')), "");
  EXPECT_EQ(ToHex(key.bytes()), "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
}

TEST(Signature, IsOfOneKeyAndOneMessage) {
  const SigningKey key = Master().Controller();
  const std::string signature = key.Sign("message");
  EXPECT_TRUE(HasSigned(key.public_key(), "message", signature));
  EXPECT_FALSE(HasSigned(key.public_key(), "messagE", signature));
  EXPECT_FALSE(HasSigned(Master(kOtherMaster).Controller().public_key(), "message", signature));
  EXPECT_FALSE(HasSigned(key.public_key(), "message", ""));
  EXPECT_FALSE(HasSigned("short", "message", signature));
}

TEST(Encoding, IsTheOnlyFormOfItsBytes) {
  for (size_t size = 0; size < 70; ++size) {
    std::string bytes(size, '\0');
    FillRandom(std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(FromBase64(ToBase64(bytes)), bytes);
    EXPECT_EQ(Unescape(Escape(bytes)), bytes);
  }
  EXPECT_EQ(ToBase64("\xff\xef"), "_-8");
  for (const char* bad : {"A", "AB", "A=", "AA==", "A A", "_-9", "AAAAA"})
    EXPECT_FALSE(FromBase64(bad)) << bad;
  for (const char* bad : {"%", "%4", "%41", "%2f", "a b", "%zz"}) EXPECT_FALSE(Unescape(bad)) << bad;
}

TEST(MasterToken, RefusesWhatCannotHoldSixteenRandomBytes) {
  const std::vector<std::string> weak = {"",
                                         "secret",
                                         "a-job-token",
                                         "0123456789abcdef",
                                         std::string(64, 'a'),
                                         "abababababababababababababababab",
                                         "91f2c5d08b3a47e6a1d90c4be8f3726"};
  for (const std::string& text : weak) {
    const auto token = MasterToken::Parse(text);
    ASSERT_FALSE(token.ok()) << text;
    EXPECT_EQ(token.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(token.status().message(), HasSubstr("openssl rand"));
    if (!text.empty()) {
      EXPECT_THAT(token.status().message(), Not(HasSubstr(text)));
    }
  }
  EXPECT_TRUE(MasterToken::Parse(kMaster).ok());
  EXPECT_TRUE(MasterToken::Parse("q7Xk2PZs0m-fVt8LJr4uYw").ok());
  EXPECT_TRUE(MasterToken::Parse("any\x01 sixteen byte").ok());
  EXPECT_FALSE(MasterToken::Parse(std::string(5000, 'x') + "abcdefgh").ok());
}

TEST(MasterToken, HasAnotherKeyForEachPurposeRoleAndEngine) {
  std::set<std::string> keys;
  size_t count = 0;
  for (const std::string_view master : {kMaster, kOtherMaster}) {
    for (const Member& member : Members()) {
      keys.emplace(Master(master).Key(Purpose::kControl, member).bytes());
      ++count;
    }
    for (const Purpose purpose : {Purpose::kObserve, Purpose::kQueue, Purpose::kPeers}) {
      keys.emplace(Master(master).Key(purpose, {}).bytes());
      EXPECT_EQ(Master(master).Key(purpose, {}), Master(master).Key(purpose, {Role::kInference, "a"}));
      ++count;
    }
  }
  EXPECT_EQ(keys.size(), count);
}

TEST(RoleToken, PrintsAndParses) {
  for (const Member& member : Members()) {
    const RoleToken token = TokenOf(member);
    const std::string text = TextOf(token);
    const auto parsed = RoleToken::Parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_EQ(TextOf(*parsed), text);
    EXPECT_EQ(parsed->member(), member);
    EXPECT_EQ(parsed->controller(), Master().Controller().public_key());
    EXPECT_EQ(text.find_first_of(" \n\"'$"), std::string::npos) << "needs quoting in a shell";
  }
}

TEST(RoleToken, HasTheKeysOfItsRoleAlone) {
  const RoleToken trainer = TokenOf({Role::kTrainer});
  EXPECT_EQ(*trainer.Key(Purpose::kControl), Master().Key(Purpose::kControl, {Role::kTrainer}));
  EXPECT_EQ(*trainer.Key(Purpose::kPeers), Master().Key(Purpose::kPeers, {}));
  const auto none = TokenOf({Role::kObserver}).Key(Purpose::kControl);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kPermission);
  EXPECT_THAT(none.status().message(), HasSubstr("observer has no key for 'control'"));
  EXPECT_FALSE(TokenOf({Role::kPeer}).Key(Purpose::kObserve).ok());
  EXPECT_FALSE(TokenOf({Role::kObserver}).Key(Purpose::kQueue).ok());
}

TEST(RoleToken, RefusesEnginesWhereThereAreNone) {
  EXPECT_FALSE(RoleToken::Derive(Master(), {Role::kTrainer, "a"}).ok());
  EXPECT_FALSE(RoleToken::Derive(Master(), {Role::kInference, std::string(kMostEngineBytes + 1, 'e')}).ok());
  EXPECT_FALSE(RoleToken::Derive(Master(), {Role::kInference, std::string(200, ' ')}).ok());
}

TEST(RoleToken, RefusesDamageWithoutQuotingIt) {
  const std::string text = TextOf(TokenOf({Role::kInference, "a"}));
  const std::string secret = text.substr(text.find(':', 5) + 1, 20);
  std::vector<std::string> damaged = {
      "wct1:",    "wct1:trainer", "wct1:trainer:",         "wct1:trainer::",
      text + "A", text + ":x",    "wct2" + text.substr(4), std::string(kMaster)};
  for (size_t size = 0; size < text.size(); ++size) damaged.push_back(text.substr(0, size));
  std::string other = text;
  other.replace(5, 11, "observer:");
  damaged.push_back(other);
  for (const std::string& one : damaged) {
    const auto parsed = RoleToken::Parse(one);
    ASSERT_FALSE(parsed.ok()) << one;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(parsed.status().message(), Not(HasSubstr(secret)));
  }
  EXPECT_FALSE(MasterToken::Parse(text).ok()) << "a role token is no master token";
}

TEST(Identity, NamesVersionRoleAndJobAlone) {
  const ClientKeys keys = KeysOf(TokenOf({Role::kInference, "b/c:d %"}));
  const auto identity = ParseIdentity(keys.identity);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->version, kVersion);
  EXPECT_EQ(identity->member, (Member{Role::kInference, "b/c:d %"}));
  EXPECT_EQ(identity->job, JobHash(Master().Controller().public_key()));
  EXPECT_EQ(keys.identity, StrCat("weightcast/7:inference/b%2Fc%3Ad%20%25:", identity->job));
  for (const char* bad : {"", "weightcast/7", "weightcast/7:trainer", "weightcast/7:trainer:0123",
                          "weightcast/07:trainer:0123456789abcdef", "weightcast/7:chief:0123456789abcdef",
                          "weightcast/7:trainer/a:0123456789abcdef", "weightcast/7:trainer:0123456789ABCDEF"})
    EXPECT_FALSE(ParseIdentity(bad)) << bad;
}

TEST(ClientKeys, WatchAsAnObserverWhateverTheRole) {
  EXPECT_EQ(KeysOf(TokenOf({Role::kTrainer}), Purpose::kObserve).identity,
            KeysOf(TokenOf({Role::kObserver}), Purpose::kObserve).identity);
  EXPECT_EQ(ClientKeysOf(TokenOf({Role::kTrainer}), Purpose::kQueue, kVersion).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ClientKeysOf(TokenOf({Role::kPeer}), Purpose::kControl, kVersion).status().code(),
            Code::kPermission);
}

}  // namespace
}  // namespace weightcast::stream
