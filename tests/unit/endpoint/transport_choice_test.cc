// Which transport a connection gets, and which addresses an endpoint tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "stream/token.h"
#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

using ::testing::HasSubstr;
using TransportChoiceTest = EndpointTest;

TEST_F(TransportChoiceTest, FallsBackAndSaysWhy) {
  FakeNet::SetDefaults("fast", {.refuse_open = "no such hardware"});
  Party a;
  Party b({.rank = 1});
  ::testing::internal::CaptureStderr();
  auto connection = a.Connect(b);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  EXPECT_EQ(connection->transport_name(), "slow");
  EXPECT_EQ(b.Accepted().transport_name(), "slow");
  EXPECT_THAT(log, HasSubstr("using slow instead of fast to trainer 1"));
  EXPECT_THAT(log, HasSubstr("no such hardware"));
  EXPECT_EQ(a.fast().links(), 0U);
}

TEST_F(TransportChoiceTest, FallsBackWhenTheOtherSideCannot) {
  FakeNet::SetDefaults("fast", {.refuse_open = "not over there"});
  Party b({.rank = 1});
  FakeNet::Reset();
  Party a;
  EXPECT_EQ(a.Connect(b)->transport_name(), "slow");
  Party c({.rank = 2});
  EXPECT_EQ(b.Connect(c)->transport_name(), "slow");
  EXPECT_TRUE(Eventually([&] { return a.fast().links() + c.fast().links() == 0; }));
}

TEST_F(TransportChoiceTest, APathThatNeverGetsReadyIsGivenUp) {
  FakeNet::SetDefaults("fast", {.never_ready = true});
  Party a({.settings = {{"connect_timeout", "0.2"}}});
  Party b({.rank = 1});
  EXPECT_EQ(a.Connect(b)->transport_name(), "slow");
}

TEST_F(TransportChoiceTest, ALaneThatFailsBeforeTheChoiceIsNotUsed) {
  FakeNet::SetDefaults("fast", {.never_ready = true});
  Party a({.settings = {{"connect_timeout", "1"}}});
  Party b({.rank = 1});
  std::thread killer([&] {
    // Slow is open and waits for fast, which never gets ready.
    EXPECT_TRUE(Eventually([&] { return b.slow().links() == 1 && a.slow().links() == 1; }));
    a.slow().KillLane(0);
  });
  auto connection = a.Connect(b);
  killer.join();
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  EXPECT_EQ(connection->transport_name(), "slow");
  std::vector<std::byte> source = Pattern(64 << 10, 1);
  std::vector<std::byte> target(source.size());
  auto local = a->Register(source, Access::kLocal);
  auto remote = b->Register(target, Access::kReadWrite);
  ASSERT_TRUE(local.ok() && remote.ok());
  const Piece all{local->Whole(), connection->Import(remote->Descriptor())->Whole()};
  auto write = connection->Write({&all, 1}, {.deadline = In(kPatience)});
  ASSERT_TRUE(write.ok());
  EXPECT_TRUE(write->Wait().ok()) << write->Wait().ToString();
  EXPECT_EQ(source, target);
}

TEST_F(TransportChoiceTest, TheSettingRestrictsAndOrders) {
  Party a({.settings = {{"transport", "slow,fast"}}});
  Party b({.rank = 1});
  EXPECT_EQ(a.Connect(b)->transport_name(), "slow");
  Party c({.rank = 2, .settings = {{"transport", "slow"}}});
  EXPECT_EQ(b.Connect(c)->transport_name(), "slow");  // c knows no other.
}

TEST_F(TransportChoiceTest, AForcedTransportFailsInsteadOfFallingBack) {
  FakeNet::SetDefaults("fast", {.refuse_open = "no such hardware"});
  Party a({.settings = {{"transport", "fast"}}});
  Party b({.rank = 1});
  const Status status = a.Connect(b).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("fast: no such hardware"));
  EXPECT_EQ(b.accepted(), 0U);
}

TEST_F(TransportChoiceTest, NoCommonTransportIsAnError) {
  Party a({.settings = {{"transport", "fast"}}});
  Party b({.rank = 1, .settings = {{"transport", "slow"}}});
  const Status status = a.Connect(b).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("fast: at the peer: this process does not use it"));
}

Status CreateStatus(const std::map<std::string, std::string>& settings,
                    const std::string& token = "the-token-of-these-tests") {
  EndpointOptions options;
  options.self = {"test", "trainer", "", 0, 0};
  options.token = token;
  for (const auto& [name, value] : settings) EXPECT_TRUE(options.settings.Set(name, value).ok());
  return CreateWith(std::move(options), kFakeFactories).status();
}

TEST_F(TransportChoiceTest, BadSettingsAreSaid) {
  EXPECT_THAT(CreateStatus({{"transport", "warp"}}).message(),
              HasSubstr("setting transport has 'warp', which is not a transport; allowed: fast, slow"));
  EXPECT_THAT(CreateStatus({{"transport", "fast,fast"}}).message(),
              HasSubstr("setting transport names fast twice"));
  EXPECT_THAT(CreateStatus({{"bind", "example.com"}}).message(), HasSubstr("setting bind is 'example.com'"));
  EXPECT_THAT(CreateStatus({{"advertise", "::::"}}).message(), HasSubstr("setting advertise"));
  EXPECT_THAT(CreateStatus({{"interface", "nosuch0"}}).message(),
              HasSubstr("no interface of setting interface, 'nosuch0', is up and has an"));
  EXPECT_THAT(CreateStatus({}, "").message(), HasSubstr("no job token"));
  EXPECT_THAT(CreateStatus({}, "short").message(), HasSubstr("too weak"));
  EXPECT_THAT(CreateStatus({}, "two words, of which one is a secret").message(),
              HasSubstr("the job token in the endpoint's options has other characters than letters, digits "
                        "and punctuation"));
  const auto observer = stream::RoleToken::Derive(*stream::MasterToken::Parse(PartyOptions{}.token), {});
  EXPECT_THAT(CreateStatus({}, std::string(observer->Print().bytes())).message(),
              HasSubstr("has no key for 'peers'"));
  EXPECT_TRUE(CreateStatus({{"bind", "::1"}}, "").ok());
}

TEST_F(TransportChoiceTest, AddressesFollowTheSettings) {
  Party any({.settings = {{"bind", "0.0.0.0"}}});
  const auto addresses = any->Addresses();
  EXPECT_TRUE(addresses.back().starts_with("127.0.0.1:")) << addresses.back();
  Party told({.settings = {{"advertise", "10.1.2.3,[2001:db8::1]:99,2001:db8::2,host.example"}}});
  const auto port = told->Addresses()[0].substr(std::string("10.1.2.3:").size());
  EXPECT_EQ(told->Addresses(), (std::vector<std::string>{"10.1.2.3:" + port, "[2001:db8::1]:99",
                                                         "[2001:db8::2]:" + port, "host.example:" + port}));
  Party v6({.settings = {{"bind", "::1"}}});
  Party other({.rank = 1});
  EXPECT_TRUE(other.Connect(v6).ok());
}

}  // namespace
}  // namespace weightcast::endpoint
