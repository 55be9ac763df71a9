#include "endpoint/message.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "endpoint/channel.h"
#include "endpoint/transfers/descriptor.h"

namespace weightcast::endpoint {
namespace {

/// No prefix and no longer text parses; random damage never gives what breaks the limits.
template <typename Parse>
void Damage(const std::string& bytes, Parse parse) {
  EXPECT_TRUE(parse(bytes));
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(parse(bytes.substr(0, size))) << size;
  EXPECT_FALSE(parse(bytes + "x"));
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = bytes;
    for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    parse(damaged);
  }
}

TEST(ControlMessage, Offers) {
  const std::vector<PathOffer> offers = {
      {"shm", true, "blob"}, {"tcp", false, "no interface"}, {"x", true, ""}};
  EXPECT_EQ(ParseOffers(EncodeOffers(offers)), offers);
  EXPECT_TRUE(ParseOffers(EncodeOffers({})).has_value());
  EXPECT_FALSE(ParseOffers(EncodeOffers({{"shm", true, "a"}, {"shm", true, "b"}})).has_value());
  EXPECT_FALSE(ParseOffers(EncodeOffers({{"", true, "a"}})).has_value());
  std::vector<PathOffer> many;
  for (size_t i = 0; i <= kMaxTransports; ++i) many.push_back({"t" + std::to_string(i), true, ""});
  EXPECT_FALSE(ParseOffers(EncodeOffers(many)).has_value());
  Damage(EncodeOffers(offers), [](const std::string& bytes) { return ParseOffers(bytes).has_value(); });
}

TEST(ControlMessage, PathsAndChoices) {
  const PathNotice notice{3, false, "it rains"};
  EXPECT_EQ(ParsePath(EncodePath(notice)), notice);
  EXPECT_FALSE(ParsePath(EncodePath({kMaxTransports, true, ""})).has_value());
  Damage(EncodePath(notice), [](const std::string& bytes) { return ParsePath(bytes).has_value(); });
  EXPECT_EQ(ParseChosen(EncodeChosen(5)), 5);
  EXPECT_FALSE(ParseChosen(EncodeChosen(kMaxTransports)).has_value());
  EXPECT_FALSE(ParseChosen("").has_value());
}

TEST(ControlMessage, Credit) {
  EXPECT_EQ(ParseCredit(EncodeCredit(UINT64_MAX - 1)), UINT64_MAX - 1);
  Damage(EncodeCredit(77), [](const std::string& bytes) { return ParseCredit(bytes).has_value(); });
}

TEST(Descriptor, IsWhatItWas) {
  const RegionDescriptor descriptor{.name = {123, 4, 5},
                                    .access = Access::kGranted,
                                    .kind = MemoryKind::kDevice,
                                    .device = {std::byte{7}},
                                    .registered = 1000,
                                    .offset = 100,
                                    .length = 900,
                                    .keys = {{"shm", "key"}, {"tcp", ""}}};
  const std::string bytes = EncodeDescriptor(descriptor);
  const auto parsed = ParseDescriptor(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(*parsed, descriptor);
  Damage(bytes, [](const std::string& text) {
    const auto got = ParseDescriptor(text);
    if (got.ok()) {
      EXPECT_LE(got->offset, got->registered);
      EXPECT_LE(got->length, got->registered - got->offset);
    }
    return got.ok();
  });
  RegionDescriptor bad = descriptor;
  bad.offset = 101;
  EXPECT_EQ(ParseDescriptor(EncodeDescriptor(bad)).status().code(), Code::kProtocol);
  bad = descriptor;
  bad.length = UINT64_MAX;
  EXPECT_FALSE(ParseDescriptor(EncodeDescriptor(bad)).ok());
  bad = descriptor;
  bad.name.generation = 0;
  EXPECT_FALSE(ParseDescriptor(EncodeDescriptor(bad)).ok());
  bad = descriptor;
  bad.kind = MemoryKind::kHost;  // Host memory lies on no device.
  EXPECT_FALSE(ParseDescriptor(EncodeDescriptor(bad)).ok());
  bad = descriptor;
  bad.keys[0].key = std::string(kMaxKey + 1, 'x');
  EXPECT_FALSE(ParseDescriptor(EncodeDescriptor(bad)).ok());
  std::string newer = bytes;
  newer[4] = 3;
  EXPECT_NE(
      ParseDescriptor(newer).status().message().find("its version is 3, and this release reads version 2"),
      std::string::npos);
}

/// Two channels, or one and a bare socket.
struct Wire {
  Wire() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    a.emplace(UniqueFd(fds[0]));
    b.emplace(UniqueFd(fds[1]));
  }
  std::optional<Channel> a;
  std::optional<Channel> b;
};

TEST(Channel, CarriesMessagesInAnyPieces) {
  Wire wire;
  ASSERT_TRUE(wire.a->Send({MessageType::kHello, "one"}).ok());
  ASSERT_TRUE(wire.a->Send({MessageType::kHeartbeat, ""}).ok());
  ASSERT_TRUE(wire.b->Receive().ok());
  const TimePoint heard = wire.b->heard();
  EXPECT_GT(heard, TimePoint{});
  EXPECT_TRUE(wire.b->Receive().ok());
  EXPECT_EQ(wire.b->heard(), heard) << "nothing has come since";
  EXPECT_EQ((**wire.b->Next()).payload, "one");
  EXPECT_EQ((**wire.b->Next()).type, MessageType::kHeartbeat);
  EXPECT_FALSE(wire.b->Next()->has_value());
  // Byte by byte.
  const std::string frame("\x03\0\0\0\x02xyz", 8);
  for (size_t i = 0; i < frame.size(); ++i) {
    EXPECT_FALSE(wire.b->Next()->has_value());
    ASSERT_EQ(write(wire.a->fd(), &frame[i], 1), 1);
    ASSERT_TRUE(wire.b->Receive().ok());
  }
  EXPECT_EQ((**wire.b->Next()).payload, "xyz");
}

TEST(Channel, TakesManyMessagesFromOnePieceAndTheRestLater) {
  Wire wire;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(wire.a->Send({MessageType::kOffers, std::to_string(i)}).ok());
    for (int i = 0; i < 2000;) {
      ASSERT_TRUE(wire.a->Flush().ok());
      ASSERT_TRUE(wire.b->Receive().ok());
      for (auto message = wire.b->Next(); (*message).has_value(); message = wire.b->Next()) {
        ASSERT_EQ((**message).payload, std::to_string(i++));
      }
    }
  }
}

TEST(Channel, RefusesTooLongMessagesBeforeTheyCome) {
  Wire wire;
  const uint32_t length = Channel::kMaxUnproven + 1;
  ASSERT_EQ(write(wire.a->fd(), &length, 4), 4);
  ASSERT_TRUE(wire.b->Receive().ok());
  EXPECT_EQ(wire.b->Next().status().code(), Code::kProtocol);
  wire.b->set_limit(Channel::kMaxPayload);
  EXPECT_TRUE(wire.b->Next().ok());
}

TEST(Channel, IsBoundedInBothDirections) {
  Wire wire;
  // A peer that does not read: the queue ends.
  Status status;
  size_t sent = 0;
  while (status.ok() && sent < 10'000) {
    status = wire.a->Send({MessageType::kOffers, std::string(60'000, 'x')});
    ++sent;
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_TRUE(wire.a->waiting());
  // What waits goes out in order as the peer reads.
  wire.b->set_limit(Channel::kMaxPayload);
  size_t received = 0;
  while (true) {
    ASSERT_TRUE(wire.b->Receive().ok());
    auto message = wire.b->Next();
    ASSERT_TRUE(message.ok());
    if (!message->has_value() && !wire.a->waiting()) break;
    if (message->has_value()) ++received;
    ASSERT_TRUE(wire.a->Flush().ok());
  }
  EXPECT_EQ(received, sent - 1);
}

TEST(Channel, TheEndComesAfterWhatWasSent) {
  Wire wire;
  ASSERT_TRUE(wire.a->Send({MessageType::kShutdown, "bye"}).ok());
  wire.a.reset();
  EXPECT_TRUE(wire.b->Receive().ok());
  EXPECT_EQ(wire.b->Receive().status().code(), Code::kUnavailable);
  EXPECT_EQ((**wire.b->Next()).payload, "bye");
}

}  // namespace
}  // namespace weightcast::endpoint
