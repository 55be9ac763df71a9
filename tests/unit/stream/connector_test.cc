#include "stream/connector.h"

#include "fixture.h"
#include "stream/bind.h"
#include "stream/client_hello.h"

namespace weightcast::stream {
namespace {

TEST(Resolver, KnowsNumericAddressesAtOnceAndForgetsWhatIsAsked) {
  auto resolver = Resolver::Create();
  ASSERT_TRUE(resolver.ok());
  ASSERT_TRUE(resolver->Start("127.0.0.1", 80).ok());
  auto found = resolver->Take();
  ASSERT_TRUE(found && found->ok());
  EXPECT_EQ((**found)[0].ToString(), "127.0.0.1:80");
  EXPECT_FALSE(resolver->Take());
  ASSERT_TRUE(resolver->Start("::1", 80).ok());
  resolver->Forget();
  EXPECT_FALSE(resolver->Take());
}

TEST(Resolver, LooksNamesUpOnAThread) {
  auto resolver = Resolver::Create();
  ASSERT_TRUE(resolver.ok());
  ASSERT_TRUE(resolver->Start("localhost", 81).ok());
  ASSERT_TRUE(WaitFor(resolver->fd(), POLLIN, Soon()));
  auto found = resolver->Take();
  ASSERT_TRUE(found && found->ok());
  EXPECT_FALSE((*found)->empty());
  for (const SocketAddress& address : **found) EXPECT_TRUE(address.IsLoopback()) << address.ToString();
}

TEST(Resolver, MayEndWhileItLooks) {
  for (int i = 0; i < 8; ++i) {
    auto resolver = Resolver::Create();
    ASSERT_TRUE(resolver.ok() && resolver->Start("localhost", 81).ok());
  }
}

/// A name with two addresses, at the second of which is the controller.
class SecondAddress : public ::testing::Test {
 protected:
  void SetUp() override {
    server_.Start();
    addresses_ = {*SocketAddress::Parse("127.0.0.2:0"), server_.socket_address()};
    auto first = Listen(addresses_[0], {});
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    first_ = std::move(*first);
    addresses_[0] = *LocalAddressOf(first_.get());
  }
  /// Accepts one connection at the first address.
  UniqueFd AcceptFirst() const {
    EXPECT_TRUE(WaitFor(first_.get(), POLLIN, Soon()));
    return std::move(*Accept(first_.get()));
  }
  [[nodiscard]] Connector::Outcome Look() const {
    auto connector = std::move(*Connector::Create());
    connector->StartAt({.host = "two.addresses",
                        .port = addresses_[1].port(),
                        .version = kVersion,
                        .keys = KeysOf(TokenOf({Role::kTrainer})),
                        .most_queued = size_t{1} << 20},
                       addresses_);
    const TimePoint deadline = Soon();
    while (Clock::now() < deadline) {
      if (auto outcome = connector->Step()) return std::move(*outcome);
      WaitFor(connector->fd(), POLLIN, std::min(connector->deadline(), deadline));
    }
    return Status(Code::kTimedOut, "nothing came of it");
  }
  std::vector<SocketAddress> addresses_;
  TestServer server_;
  UniqueFd first_;
};

TEST_F(SecondAddress, IsTriedWhileTheFirstIsSilent) {
  const auto found = Look();
  EXPECT_TRUE(found.ok()) << found.status().ToString();
}

TEST_F(SecondAddress, IsTriedWhereNobodyListensAtTheFirst) {
  first_.reset();
  const auto found = Look();
  EXPECT_TRUE(found.ok()) << found.status().ToString();
}

TEST_F(SecondAddress, IsTriedWhereTheFirstIsSomethingElse) {
  std::thread other([&] {
    const UniqueFd accepted = AcceptFirst();
    EXPECT_TRUE(SendAll(accepted.get(), "SSH-2.0-OpenSSH_9.2\r\n", Soon()).ok());
    ReceiveToEnd(accepted.get());
  });
  const auto found = Look();
  EXPECT_TRUE(found.ok()) << found.status().ToString();
  other.join();
}

TEST_F(SecondAddress, TheMostTellingFailureIsTheAnswer) {
  server_.server().Stop();
  std::thread other([&] {
    const UniqueFd accepted = AcceptFirst();
    EXPECT_TRUE(SendAll(accepted.get(), AlertRecord(Alert::kUnknownIdentity), Soon()).ok());
    ReceiveToEnd(accepted.get());
  });
  const auto found = Look();
  other.join();
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kPermission) << found.status().ToString();
  EXPECT_NE(found.status().message().find(addresses_[0].ToString()), std::string::npos);
}

TEST(Connector, SaysThatANameHasNoAddress) {
  auto connector = std::move(*Connector::Create());
  EXPECT_FALSE(connector->Step());
  connector->StartAt({.host = "no.address", .version = kVersion, .keys = KeysOf(TokenOf({Role::kTrainer}))},
                     {});
  const auto outcome = connector->Step();
  ASSERT_TRUE(outcome && !outcome->ok());
  EXPECT_NE(outcome->status().message().find("no.address"), std::string::npos);
}

TEST(ListenAtAll, TakesOnePortAtEveryAddress) {
  const auto bound = ListenAtAll({*SocketAddress::Parse("127.0.0.1:0"), *SocketAddress::Parse("127.0.0.2:0"),
                                  *SocketAddress::Parse("127.0.0.1:0")},
                                 0);
  ASSERT_TRUE(bound.ok()) << bound.status().ToString();
  ASSERT_EQ(bound->listeners.size(), 2U);
  for (const UniqueFd& fd : bound->listeners) EXPECT_EQ(LocalAddressOf(fd.get())->port(), bound->port);
}

TEST(ListenAtAll, FailsWithTheOneAddressThatIsTaken) {
  const auto taken = Listen(*SocketAddress::Parse("127.0.0.2:0"), {});
  ASSERT_TRUE(taken.ok());
  const uint16_t port = LocalAddressOf(taken->get())->port();
  const auto bound =
      ListenAtAll({*SocketAddress::Parse("127.0.0.1:0"), *SocketAddress::Parse("127.0.0.2:0")}, port);
  ASSERT_FALSE(bound.ok());
  EXPECT_EQ(bound.status().code(), Code::kUnavailable);
  EXPECT_NE(bound.status().message().find(StrCat("127.0.0.2:", port)), std::string::npos)
      << bound.status().ToString();
}

TEST(ListenAtAll, FailsWithTheOneAddressThatIsNotOurs) {
  // TEST-NET-3 (RFC 5737).
  const auto bound =
      ListenAtAll({*SocketAddress::Parse("127.0.0.1:0"), *SocketAddress::Parse("203.0.113.7:0")}, 0);
  ASSERT_FALSE(bound.ok());
  EXPECT_EQ(bound.status().code(), Code::kInvalidArgument);
  EXPECT_NE(bound.status().message().find("203.0.113.7"), std::string::npos) << bound.status().ToString();
}

}  // namespace
}  // namespace weightcast::stream
