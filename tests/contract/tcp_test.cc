// What only tcp has: a port that anyone can talk to, addresses to choose from.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/log.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "contract/side.h"
#include "contract/tcp_lanes.h"
#include "transport/tcp/factory.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/greeting.h"
#include "transport/tcp/offer.h"

namespace weightcast::transport {
namespace {

// --- Addresses and settings

TEST(TcpSettingsTest, LanesAreTheLowerWish) {
  Side a(kTcp, WithLanes(5));
  Side b(kTcp, WithLanes(3));
  const auto deadline = Clock::now() + kPatience;
  const auto offer = a.transport().OpenLink(LinkId{1}, Role::kInitiator, b.self(), "", deadline);
  const auto answer = b.transport().OpenLink(LinkId{1}, Role::kResponder, a.self(), *offer, deadline);
  ASSERT_TRUE(a.transport().Establish(LinkId{1}, *answer).ok());
  ASSERT_TRUE(
      PumpUntil({&a, &b}, [&] { return a.ready.contains(LinkId{1}) && b.ready.contains(LinkId{1}); }));
  EXPECT_EQ(a.ready[LinkId{1}], 3U);
  EXPECT_EQ(b.ready[LinkId{1}], 3U);
}

Result<std::vector<SocketAddress>> AddressesFor(const Settings& settings, const std::string& boot_id) {
  Side side(kTcp, settings);
  const auto offer = tcp::EncodeOffer({tcp::NewCookie(), 1, 16, boot_id});
  WC_ASSIGN_OR_RETURN(const auto blob, side.transport().OpenLink(LinkId{1}, Role::kResponder, 5, offer,
                                                                 Clock::now() + kPatience));
  WC_ASSIGN_OR_RETURN(const auto answer, tcp::ParseAnswer(blob));
  return answer.addresses;
}

TEST(TcpSettingsTest, LoopbackIsOfferedToThisHostAlone) {
  Settings settings;
  const auto here = AddressesFor(settings, BootId());
  ASSERT_TRUE(here.ok());
  EXPECT_TRUE(std::ranges::any_of(*here, &SocketAddress::IsLoopback));
  settings.bind = "127.0.0.1";
  const auto there = AddressesFor(settings, "another host");
  EXPECT_EQ(there.status().code(), Code::kUnavailable);
  EXPECT_NE(there.status().message().find("bind"), std::string::npos);
}

TEST(TcpSettingsTest, BindAndAdvertiseAndPortRange) {
  Settings settings = TestSettings();
  settings.advertise = "127.0.0.1,::1,10.11.12.13";
  const auto told = AddressesFor(settings, BootId());
  ASSERT_TRUE(told.ok());
  ASSERT_EQ(told->size(), 3U);
  EXPECT_EQ((*told)[2].Host(), "10.11.12.13");
  EXPECT_EQ((*told)[1].Host(), "::1");
  EXPECT_NE((*told)[0].port(), 0);

  const UniqueFd taken = *Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  const uint16_t port = LocalAddressOf(taken.get())->port();
  settings = TestSettings();
  settings.port_range = StrCat(port, "-", port);
  const auto refused = CreateTcpTransport({.settings = settings, .self = 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("port in use"), std::string::npos) << refused.status().message();

  settings = TestSettings();
  settings.bind = "nonsense";
  EXPECT_EQ(CreateTcpTransport({.settings = settings, .self = 1}).status().code(), Code::kInvalidArgument);
}

/// Before the right address stand: one where nobody listens, and one where somebody listens and is silent.
TEST(TcpSettingsTest, WrongAddressesOnlyDelay) {
  Side a(kTcp);
  Settings settings = TestSettings();
  settings.advertise = "127.0.0.8,127.0.0.9,127.0.0.1";
  Side b(kTcp, settings);
  const auto deadline = Clock::now() + kPatience;
  const auto offer = a.transport().OpenLink(LinkId{1}, Role::kInitiator, b.self(), "", deadline);
  const auto answer = b.transport().OpenLink(LinkId{1}, Role::kResponder, a.self(), *offer, deadline);
  ASSERT_TRUE(answer.ok());
  SocketAddress silent = tcp::ParseAnswer(*answer)->addresses[1];
  const auto stranger = Listen(silent, {});
  ASSERT_TRUE(stranger.ok()) << stranger.status().ToString();
  const auto before = Clock::now();
  ASSERT_TRUE(a.transport().Establish(LinkId{1}, *answer).ok());
  ASSERT_TRUE(
      PumpUntil({&a, &b}, [&] { return a.ready.contains(LinkId{1}) && b.ready.contains(LinkId{1}); }));
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(10));
}

TEST(TcpSettingsTest, NoAddressThatAnswersSaysWhichWereTried) {
  Side a(kTcp);
  const auto offer = a.transport().OpenLink(LinkId{1}, Role::kInitiator, 5, "", Clock::now() + kPatience);
  const UniqueFd gone = *Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  const auto address = *LocalAddressOf(gone.get());
  shutdown(gone.get(), SHUT_RDWR);
  tcp::Answer answer{
      .cookie = tcp::NewCookie(), .lanes = 1, .depth = 16, .spread = false, .addresses = {address}};
  ASSERT_TRUE(a.transport().Establish(LinkId{1}, tcp::EncodeAnswer(answer)).ok());
  ASSERT_TRUE(PumpUntil({&a}, [&] { return a.down.contains(LinkId{1}); }));
  EXPECT_NE(a.down[LinkId{1}].message().find(address.ToString()), std::string::npos);
}

// --- Hostile peers

/// Talks to a side's tcp transport with a plain socket.
class Intruder {
 public:
  explicit Intruder(Side& target) : target_(target) {
    const auto offer = tcp::EncodeOffer({ours_, 1, 16, BootId()});
    auto blob = target.transport().OpenLink(kLink, Role::kResponder, 5, offer, Clock::now() + kPatience);
    Require(blob.ok(), blob.status().message());
    answer_ = *tcp::ParseAnswer(*blob);
  }
  UniqueFd ConnectTo() const {
    auto fd = Connect(answer_.addresses.at(0), Clock::now() + kPatience);
    Require(fd.ok(), fd.status().message());
    return std::move(fd).value();
  }
  /// A started lane: from here on frames count.
  UniqueFd Enter() {
    UniqueFd fd = ConnectTo();
    Say(fd, tcp::Greeting::Kind::kHello);
    Require(PumpUntil({&target_}, [&] { return WaitFor(fd.get(), POLLIN, Clock::now()); }), "no welcome");
    tcp::GreetingBytes welcome;
    Require(recv(fd.get(), welcome.data(), welcome.size(), 0) == tcp::kGreetingSize, "a short welcome");
    Say(fd, tcp::Greeting::Kind::kStart);
    Require(PumpUntil({&target_}, [&] { return target_.ready.contains(kLink); }), "not ready");
    return fd;
  }
  void Say(const UniqueFd& fd, tcp::Greeting::Kind kind, uint32_t generation = 0) const {
    const auto bytes = tcp::EncodeGreeting({kind, 0, generation, answer_.cookie});
    send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  static void Say(const UniqueFd& fd, const tcp::Frame& frame) {
    std::array<std::byte, tcp::kMaxFrameSize> bytes{};
    const size_t size = tcp::EncodeFrame(frame, bytes);
    send(fd.get(), bytes.data(), size, MSG_NOSIGNAL);
  }
  static void Say(const UniqueFd& fd, std::string_view bytes) {
    send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  static constexpr LinkId kLink{1};

 private:
  Side& target_;
  tcp::Cookie ours_ = tcp::NewCookie();
  tcp::Answer answer_;
};

/// The other side has closed it.
bool Closed(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t got = recv(fd.get(), &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

TEST(TcpHostileTest, StrangersAtTheListenerAreSentAway) {
  Side side(kTcp);
  Intruder intruder(side);
  std::mt19937_64 random(7);
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 50; ++i) {
    sockets.push_back(intruder.ConnectTo());
    std::string noise(32 + random() % 200, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    Intruder::Say(sockets.back(), noise);
  }
  // A hello that is right but for its cookie, and a start without a hello.
  for (const auto kind : {tcp::Greeting::Kind::kHello, tcp::Greeting::Kind::kStart}) {
    sockets.push_back(intruder.ConnectTo());
    const auto bytes = tcp::EncodeGreeting({kind, 0, 0, tcp::NewCookie()});
    Intruder::Say(sockets.back(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  sockets.push_back(intruder.ConnectTo());
  intruder.Say(sockets.back(), tcp::Greeting::Kind::kStart);
  for (const UniqueFd& fd : sockets) ASSERT_TRUE(PumpUntil({&side}, [&] { return Closed(fd); }));
  // Who does know the cookie still gets in.
  EXPECT_TRUE(intruder.Enter().valid());
}

TEST(TcpHostileTest, SilentStrangersAreSentAwayInTime) {
  Settings settings = TestSettings();
  settings.connect_timeout = std::chrono::milliseconds(100);
  Side side(kTcp, settings);
  Intruder intruder(side);
  const UniqueFd silent = intruder.ConnectTo();
  const UniqueFd slow = intruder.ConnectTo();
  Intruder::Say(slow, "W");
  ASSERT_TRUE(PumpUntil({&side}, [&] { return Closed(silent) && Closed(slow); }));
}

class HostileFrames : public testing::Test {
 protected:
  static constexpr uint64_t kSize = 64 << 10;
  void SetUp() override {
    memory.Wipe();
    region = side.Register(memory, Access::kReadWrite);
    socket = intruder.Enter();
  }
  tcp::Frame Make(tcp::FrameType type, uint32_t sequence, uint64_t length) const {
    return {.type = type,
            .sequence = sequence,
            .region = region.name.id,
            .generation = region.name.generation,
            .grant{},
            .offset = 0,
            .length = length,
            .signal{}};
  }
  /// The lane ends, for this reason.
  void ExpectEnd() {
    ASSERT_TRUE(PumpUntil({&side}, [&] { return side.down.contains(Intruder::kLink); }));
    ASSERT_EQ(side.lanes_down.size(), 1U);
    EXPECT_EQ(side.lanes_down[0].reason.code(), Code::kProtocol) << side.lanes_down[0].reason.ToString();
    EXPECT_TRUE(memory.Wiped());
  }
  Side side{kTcp};
  TestMemory memory{kSize, true};
  Described region;
  Intruder intruder{side};
  UniqueFd socket;
};

TEST_F(HostileFrames, NotAFrame) {
  Intruder::Say(socket, std::string(100, 'x'));
  ExpectEnd();
}

TEST_F(HostileFrames, OutOfTurn) {
  Intruder::Say(socket, Make(tcp::FrameType::kWrite, 1, 8));
  ExpectEnd();
}

TEST_F(HostileFrames, AnAckOfNothing) {
  Intruder::Say(socket, Make(tcp::FrameType::kAck, 0, 0));
  ExpectEnd();
}

TEST_F(HostileFrames, AResultOfNothing) {
  Intruder::Say(socket, Make(tcp::FrameType::kResult, 0, 0));
  ExpectEnd();
}

TEST_F(HostileFrames, DataThatNobodyAskedFor) {
  Intruder::Say(socket, Make(tcp::FrameType::kData, 0, 8));
  ExpectEnd();
}

TEST_F(HostileFrames, MoreReadsThanAgreedWhileTakingNoAnswer) {
  for (uint32_t i = 0; i < 10'000; ++i) {
    std::array<std::byte, tcp::kMaxFrameSize> bytes{};
    const size_t size = tcp::EncodeFrame(Make(tcp::FrameType::kRead, i, kSize), bytes);
    if (send(socket.get(), bytes.data(), size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
    if (i % 100 == 0) side.Pump();
    if (side.down.contains(Intruder::kLink)) break;
  }
  ExpectEnd();
}

TEST_F(HostileFrames, TheEndOfTheLaneThatItSpeaksOn) {
  Intruder::Say(socket, Make(tcp::FrameType::kLaneOver, 0, 0));
  ExpectEnd();
}

TEST_F(HostileFrames, TheEndOfALaneThatThereIsNot) {
  tcp::Frame frame = Make(tcp::FrameType::kLaneOver, 0, 0);
  frame.lane = 1;
  Intruder::Say(socket, frame);
  ExpectEnd();
}

/// Nobody opens a lane a second time while it is open, whatever generation it names.
TEST_F(HostileFrames, ALaneThatIsThere) {
  for (const uint32_t generation : {0U, 1U, 2U}) {
    const UniqueFd second = intruder.ConnectTo();
    intruder.Say(second, tcp::Greeting::Kind::kHello, generation);
    ASSERT_TRUE(PumpUntil({&side}, [&] { return Closed(second); })) << generation;
  }
  EXPECT_FALSE(side.down.contains(Intruder::kLink));
}

TEST_F(HostileFrames, AnAckForARead) {
  // We read from the intruder; it answers with an ack, again and again.
  const TestMemory landing(kSize, true);
  const Described local = side.Register(landing, Access::kLocal);
  const RemoteRegion remote = side.Import(Intruder::kLink, {{5, 1, 1}, kSize, ""});
  const uint64_t cookie = side.Post(Intruder::kLink, 0,
                                    {.kind = OpKind::kRead,
                                     .local = local.name.id,
                                     .remote = remote,
                                     .length = kSize,
                                     .grant{},
                                     .signal{}});
  Intruder::Say(socket, Make(tcp::FrameType::kAck, 0, 0));
  ExpectEnd();
  EXPECT_EQ(side.completions[cookie].code, Code::kUnavailable);
}

TEST_F(HostileFrames, AReadThatEndsTooSoonOrGetsTooMuch) {
  const TestMemory landing(kSize, true);
  landing.Wipe();
  const Described local = side.Register(landing, Access::kLocal);
  const RemoteRegion remote = side.Import(Intruder::kLink, {{5, 1, 1}, kSize, ""});
  side.Post(
      Intruder::kLink, 0,
      {.kind = OpKind::kRead, .local = local.name.id, .remote = remote, .length = 100, .grant{}, .signal{}});
  Intruder::Say(socket, Make(tcp::FrameType::kData, 0, 101));
  Intruder::Say(socket, std::string(101, 'x'));
  ExpectEnd();
  EXPECT_TRUE(landing.Wiped());
}

/// A terabyte into nothing, refused at once and drained without memory.
TEST_F(HostileFrames, AHugeRefusedWriteHoldsNobodyUp) {
  tcp::Frame frame = Make(tcp::FrameType::kWrite, 0, tcp::kMaxLength);
  Intruder::Say(socket, frame);
  const std::string noise(1U << 20, 'x');
  for (int i = 0; i < 64; ++i) {
    Intruder::Say(socket, noise);
    side.Pump();
  }
  EXPECT_TRUE(memory.Wiped());
  EXPECT_FALSE(side.down.contains(Intruder::kLink));
  side.transport().CloseLink(Intruder::kLink);
  ASSERT_TRUE(PumpUntil({&side}, [&] { return side.closed.contains(Intruder::kLink); }));
}

/// Frames that parse, in random order with random contents, and now and then a damaged one. Bytes land
/// only where a region that is open to all says so.
TEST(TcpHostileTest, RandomFramesBreakNothing) {
  std::mt19937_64 random(42);
  SetLogLevel(LogLevel::kOff);  // Hundreds of violations.
  Side side(kTcp);
  const TestMemory open_memory(4096, true);
  const TestMemory closed_memory(4096, true);
  const TestMemory own_memory(4096, true);
  closed_memory.Wipe();
  const Described open_region = side.Register(open_memory, Access::kReadWrite);
  const Described closed_region = side.Register(closed_memory, Access::kGranted);
  const Described own = side.Register(own_memory, Access::kLocal);
  for (int round = 0; round < 300; ++round) {
    Intruder intruder(side);
    const UniqueFd socket = intruder.Enter();
    const RemoteRegion remote = side.Import(Intruder::kLink, {{5, 1, 1}, 4096, ""});
    uint32_t sequence = 0;
    for (int i = 0; i < 60 && !side.down.contains(Intruder::kLink); ++i) {
      std::vector<Op> ops(random() % 3, {.kind = random() % 2 == 0 ? OpKind::kRead : OpKind::kWrite,
                                         .local = own.name.id,
                                         .remote = remote,
                                         .length = random() % 4096,
                                         .grant{},
                                         .signal{}});
      side.TryPost(Intruder::kLink, 0, ops);
      // Every other round is of operations alone: answers of nothing end a lane soon.
      const auto type = static_cast<tcp::FrameType>(1 + random() % (round % 2 == 0 ? 3 : 7));
      const bool operation = type <= tcp::FrameType::kRead;
      const Described& region = random() % 2 == 0 ? open_region : closed_region;
      tcp::Frame frame{.type = type,
                       .has_signal = random() % 2 == 0,
                       .sequence = operation ? sequence++ : static_cast<uint32_t>(random() % 4),
                       .region = region.name.id,
                       .generation = region.name.generation,
                       .grant = random() % 2 == 0 ? GrantName{} : GrantName{.slot = 1, .id = random() % 3},
                       .offset = random() % 5000,
                       .length = random() % 5000,
                       .signal{},
                       .code = static_cast<Code>(random() % 13)};
      std::array<std::byte, tcp::kMaxFrameSize> bytes{};
      const size_t size = tcp::EncodeFrame(frame, bytes);
      if (random() % 50 == 0) bytes[random() % size] ^= static_cast<std::byte>(random());
      Intruder::Say(socket, {reinterpret_cast<const char*>(bytes.data()), size});
      Intruder::Say(socket, std::string(frame.payload(), 'x'));
      side.Pump();
    }
    side.transport().CloseLink(Intruder::kLink);
    ASSERT_TRUE(PumpUntil({&side}, [&] { return side.closed.contains(Intruder::kLink); }));
    ASSERT_EQ(side.pending(), 0U);
    ASSERT_TRUE(closed_memory.Wiped());
    side.Forget();
  }
  SetLogLevel(LogLevel::kWarning);
}

}  // namespace
}  // namespace weightcast::transport
