#include "stream/dialler.h"

#include <netinet/in.h>

#include "fixture.h"
#include "stream/bind.h"

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
