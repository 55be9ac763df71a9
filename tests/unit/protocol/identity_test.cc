#include "protocol/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "protocol/field_text.h"

namespace weightcast::protocol {
namespace {

const Identity kTrainer{.job = "job", .role = "trainer", .engine = "", .rank = 1, .incarnation = 7};

TEST(ProtocolIdentity, ASecretHasOneIncarnation) {
  std::set<Incarnation> all;
  for (int i = 0; i < 100; ++i) {
    const std::string secret = NewSecret();
    EXPECT_EQ(secret.size(), kSecretBytes);
    EXPECT_EQ(IncarnationOf(secret), IncarnationOf(secret));
    EXPECT_NE(IncarnationOf(secret), 0U);
    all.insert(IncarnationOf(secret));
  }
  EXPECT_EQ(all.size(), 100U);
}

TEST(ProtocolIdentity, TheKeyOfAPairIsOfThisSecretAndOfThisInitiatorAlone) {
  const std::string secret = NewSecret();
  std::set<std::string> keys{PairKey(secret, kTrainer), PairKey(NewSecret(), kTrainer)};
  for (const auto& change : std::vector<std::function<void(Identity&)>>{
           [](Identity& i) { i.job = "other"; }, [](Identity& i) { i.role = "inference"; },
           [](Identity& i) { i.engine = "a"; }, [](Identity& i) { i.rank = 2; },
           [](Identity& i) { i.incarnation = 8; }}) {
    Identity other = kTrainer;
    change(other);
    keys.insert(PairKey(secret, other));
  }
  EXPECT_EQ(keys.size(), 7U);
  EXPECT_EQ(PairKey(secret, kTrainer).size(), kSecretBytes);
  const WorkerName name{.role = Role::kTrainer, .engine = "", .rank = 1};
  EXPECT_EQ(IdentityOf("job", name, 7), kTrainer);
}

struct PlainText : FieldText<Text> {
  using FieldText<Text>::Of;
};

TEST(ProtocolIdentity, SecretsAreNotPrinted) {
  Hello hello;
  hello.secret = std::string(kSecretBytes, 's');
  EXPECT_THAT(PlainText().Of(hello), ::testing::HasSubstr("secret: hidden"));
  EXPECT_THAT(PlainText().Of(hello), ::testing::Not(::testing::HasSubstr("sss")));
  hello.secret.clear();
  EXPECT_THAT(PlainText().Of(hello), ::testing::Not(::testing::HasSubstr("secret")));
}

}  // namespace
}  // namespace weightcast::protocol
