// What those without a key can do at a server's port, and those who stand between it and its clients.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>

#include "base/process.h"
#include "fixture.h"
#include "stream/connection.h"
#include "stream/frame.h"
#include "stream/proof.h"

namespace weightcast::stream {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

UniqueFd ConnectTo(const TestServer& server) { return std::move(*Connect(server.socket_address(), Soon())); }

/// What the server answers to these bytes until it ends the connection.
std::string AnswerTo(const TestServer& server, std::string_view bytes) {
  const UniqueFd fd = ConnectTo(server);
  (void)SendAll(fd.get(), bytes, Soon());
  return ReceiveToEnd(fd.get());
}

/// What is logged. Again and again, as each place logs once a second and other tests log, too.
std::string LogOf(const std::function<void()>& work) {
  const TimePoint deadline = Soon();
  std::string log;
  while (log.empty() && Clock::now() < deadline) {
    ::testing::internal::CaptureStderr();
    work();
    log = ::testing::internal::GetCapturedStderr();
  }
  return log;
}

TEST(Strangers, AreAnsweredWithAnAlert) {
  TestServer server;
  server.Start();
  const auto alert = [](Alert what) { return AlertRecord(what); };
  EXPECT_EQ(AnswerTo(server, "GET / HTTP/1.1\r\n\r\n"), alert(Alert::kDecodeError));
  EXPECT_EQ(AnswerTo(server, "\x16\x03\x01\x7f\xff" + std::string(2000, 'x')), alert(Alert::kDecodeError));
  EXPECT_EQ(AnswerTo(server, ClientHelloOf(KeysOf(TokenOf({Role::kTrainer}, kOtherMaster)))),
            alert(Alert::kUnknownIdentity));
  EXPECT_EQ(AnswerTo(server, ClientHelloOf(TrainerKeys(), kVersion + 1)), alert(Alert::kNoProtocol));
  EXPECT_TRUE(server.silent());
}

TEST(Strangers, OfAnOlderReleaseAreNamedInTheLog) {
  TestServer server;
  server.Start();
  const std::string log = LogOf([&] { EXPECT_EQ(AnswerTo(server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), ""); });
  EXPECT_THAT(log, HasSubstr("older release"));
  EXPECT_THAT(log, HasSubstr("127.0.0.1:"));
}

TEST(Strangers, OfAnotherVersionAreNamedInTheLog) {
  TestServer server;
  server.Start();
  const std::string log = LogOf([&] { AnswerTo(server, ClientHelloOf(TrainerKeys(), 99)); });
  EXPECT_THAT(log, HasSubstr("protocol version 99, this controller protocol version 7"));
}

TEST(Strangers, WhoSayNothingEndAfterAWhile) {
  TestServer server;
  server.Start(size_t{1} << 20, 200ms);
  const UniqueFd silent = ConnectTo(server);
  const UniqueFd half = ConnectTo(server);
  ASSERT_TRUE(SendAll(half.get(), ClientHelloOf(TrainerKeys()).substr(0, 50), Soon()).ok());
  const UniqueFd stuck = ConnectTo(server);
  ASSERT_TRUE(SendAll(stuck.get(), ClientHelloOf(TrainerKeys()), Soon()).ok());
  EXPECT_EQ(ReceiveToEnd(silent.get()), "");
  EXPECT_EQ(ReceiveToEnd(half.get()), "");
  EXPECT_THAT(ReceiveToEnd(stuck.get()), Not(HasSubstr("weightcast")));
  EXPECT_TRUE(server.silent());
}

TEST(Strangers, AnHonestHelloMayComeByteByByte) {
  TestServer server;
  server.Start();
  UniqueFd fd = ConnectTo(server);
  TlsSession session = ClientSession(TrainerKeys());
  std::string plaintext;
  std::string bytes;
  ASSERT_TRUE(session.Receive("", plaintext).ok());
  session.TakeOutput(bytes);
  TuneTcp(fd.get(), kLong);  // No Nagle: each byte is a segment.
  for (const char byte : bytes) ASSERT_TRUE(SendAll(fd.get(), {&byte, 1}, Soon()).ok());
  Connection connection(std::move(fd), std::move(session), size_t{1} << 20);
  while (!connection.HasFrame() && WaitFor(connection.fd(), POLLIN, Soon())) {
    connection.Read();
    ASSERT_TRUE(connection.Flush().ok());
  }
  const auto frame = connection.Next();
  ASSERT_TRUE(frame.ok() && *frame) << frame.status().ToString();
  EXPECT_TRUE(CheckController(connection.tls(), TrainerKeys().controller, (*frame)->body).ok());
  EXPECT_EQ(server.Next().what, "open");
}

TEST(Strangers, WithAWrongKeyAreNeverTaken) {
  TestServer server;
  server.Start();
  ClientKeys keys = TrainerKeys();
  keys.key = Master(kOtherMaster).Key(Purpose::kControl, {Role::kTrainer});  // The right name, another key.
  for (int i = 0; i < kMany; ++i) {
    const std::string answer = AnswerTo(server, ClientHelloOf(keys));
    ASSERT_EQ(answer.size(), 7U);
    ASSERT_EQ(answer[0], 0x15) << "an alert";
  }
  EXPECT_TRUE(server.silent());
}

TEST(Recording, HasNoTokenKeyOrMessageAndIsOfNoUse) {
  TestServer server;
  server.Start();
  const RoleToken token = TokenOf({Role::kInference, "a"});
  std::string sent[2];
  {
    Recorder recorder(server.socket_address());
    const auto client = NewClient();
    ASSERT_TRUE(ConnectStream(*client, recorder.address(), token).ok());
    const auto opened = server.Next();
    ASSERT_TRUE(client->Send("the trainer publishes").ok());
    (void)client->Next(Clock::now());
    EXPECT_EQ(server.Next().body, "the trainer publishes");
    server.Send(opened.stream, "the engine receives");
    EXPECT_EQ(NextOf(*client).body, "the engine receives");
    client->Abort();
    recorder.Join();
    sent[0] = recorder.sent[0];
    sent[1] = recorder.sent[1];
  }
  EXPECT_EQ(server.Next().what, "closed");
  std::vector<std::string> secrets = {std::string(kMaster), std::string(token.Print().bytes()),
                                      "the trainer publishes", "the engine receives"};
  for (const Purpose purpose : PurposesOf(Role::kInference)) {
    secrets.emplace_back(token.Key(purpose)->bytes());
    secrets.push_back(ToHex(token.Key(purpose)->bytes()));
  }
  for (const std::string& bytes : sent) {
    ASSERT_GT(bytes.size(), 100U);
    for (const std::string& secret : secrets) EXPECT_EQ(bytes.find(secret), std::string::npos);
  }
  EXPECT_NE(sent[0].find("inference/a"), std::string::npos) << "the key's name is not hidden";
  for (int i = 0; i < kMany; ++i) {
    // As it was recorded, and with the rest once the server has answered.
    const UniqueFd fd = ConnectTo(server);
    const size_t hello =
        5 + (static_cast<size_t>(static_cast<uint8_t>(sent[0][3])) << 8 | static_cast<uint8_t>(sent[0][4]));
    ASSERT_TRUE(SendAll(fd.get(), sent[0].substr(0, hello), Soon()).ok());
    ASSERT_TRUE(WaitFor(fd.get(), POLLIN, Soon()));
    (void)SendAll(fd.get(), sent[0].substr(hello), Soon());
    ::shutdown(fd.get(), SHUT_WR);
    ReceiveToEnd(fd.get());
  }
  EXPECT_TRUE(server.silent()) << "a replayed client was taken";
}

TEST(ManInTheMiddle, WhoChangesAnythingEndsTheStream) {
  TestServer server;
  server.Start(size_t{1} << 20, 1s);  // A changed length leaves a handshake waiting.
  for (int i = 0; i < kMany; ++i) {
    // A byte of the n-th bytes that pass, in either direction.
    const auto change = [count = size_t{0}, at = static_cast<size_t>(i) * 3](std::string& bytes) mutable {
      if (at >= count && at < count + bytes.size())
        bytes[at - count] = static_cast<char>(bytes[at - count] ^ 0x40);
      count += bytes.size();
    };
    Recorder recorder(server.socket_address(), i % 2 == 0 ? Recorder::Change(change) : Recorder::Change(),
                      i % 2 == 1 ? Recorder::Change(change) : Recorder::Change());
    const auto client = NewClient();
    std::string heard;
    if (ConnectStream(*client, recorder.address(), TokenOf({Role::kTrainer})).ok() &&
        client->Send("true words").ok()) {
      client->Close({Code::kCancelled, "done"});
      (void)NextOf(*client);
    }
    client->Abort();
    recorder.Join();
  }
  server.server().Stop();
  while (!server.silent()) {
    const auto told = server.Next();
    if (told.what == "message") {
      EXPECT_EQ(told.body, "true words");
    }
  }
}

TEST(Members, WhoBreakTheFramesAreDropped) {
  TestServer server;
  server.Start();
  const auto broken = [&](std::string_view bytes) {
    UniqueFd fd = ConnectTo(server);
    TlsSession session = ClientSession(TrainerKeys());
    std::string plaintext;
    std::string out;
    (void)session.Receive("", plaintext);
    while (!session.established()) {
      session.TakeOutput(out);
      if (!SendAll(fd.get(), out, Soon()).ok() || !WaitFor(fd.get(), POLLIN, Soon())) return;
      out.clear();
      char received[4096];
      const ssize_t got = ::recv(fd.get(), received, sizeof received, MSG_DONTWAIT);
      if (got <= 0 || !session.Receive({received, static_cast<size_t>(got)}, plaintext).ok()) return;
    }
    ASSERT_TRUE(session.Send(bytes).ok());
    session.TakeOutput(out);
    ASSERT_TRUE(SendAll(fd.get(), out, Soon()).ok());
    ReceiveToEnd(fd.get());
  };
  std::string proof;
  AppendFrame(proof, FrameKind::kProof, std::string(kSignatureBytes, 'x'));
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff\x02", 5), std::string("\0\0\0\0\x09", 5), proof}) {
    broken(bytes);
    EXPECT_EQ(server.Next().what, "open");
    const auto told = server.Next();
    EXPECT_EQ(told.what, "closed");
    EXPECT_EQ(told.reason.code(), Code::kProtocol);
  }
}

/// Connections of strangers, each with `bytes`, as many at once as `count`, over and over until told to end.
class Flood {
 public:
  Flood(const TestServer& server, std::string bytes, size_t count)
      : address_(server.socket_address()), bytes_(std::move(bytes)), count_(count) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Flood() {
    end_ = true;
    thread_.join();
  }
  [[nodiscard]] size_t made() const { return made_; }

 private:
  void Run() {
    std::deque<UniqueFd> held;
    while (!end_) {
      auto fd = Connect(address_, Soon());
      if (!fd.ok()) continue;
      (void)SendAll(fd->get(), bytes_, Soon());
      held.push_back(std::move(*fd));
      ++made_;
      if (held.size() > count_) held.pop_front();
    }
  }
  const SocketAddress address_;
  const std::string bytes_;
  const size_t count_;
  std::atomic<bool> end_{false};
  std::atomic<size_t> made_{0};
  std::thread thread_;
};

size_t MemoryNow() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) << 10;
}

TEST(Flood, OfAThousandStrangersStarvesNobody) {
  RaiseDescriptorLimit();
  ClientKeys wrong = TrainerKeys();
  wrong.key = Master(kOtherMaster).Key(Purpose::kControl, {Role::kTrainer});
  TestServer server;
  server.Start();
  const auto client = NewClient();
  ASSERT_TRUE(ConnectStream(*client, server.address(), TokenOf({Role::kTrainer})).ok());
  const auto stream = server.Next().stream;
  const size_t before = MemoryNow();
  // Who says nothing; who has a name, but no key; who replays a whole Hello and then is silent.
  for (const std::string& bytes : {std::string(), ClientHelloOf(wrong), ClientHelloOf(TrainerKeys())}) {
    const Flood flood(server, bytes, 300);
    int beats = 0;
    while (flood.made() < 1000 || beats < 100) {
      ASSERT_TRUE(client->Send("heartbeat").ok());
      (void)client->Next(Clock::now());
      const auto told = server.Next();
      ASSERT_EQ(told.body, "heartbeat") << told.what << told.reason.ToString();
      server.Send(stream, "heartbeat");
      ASSERT_EQ(NextOf(*client).body, "heartbeat");
      ++beats;
    }
    // Who replays can push an honest handshake out: it is tried again, as workers do.
    const auto honest = NewClient();
    Status status(Code::kUnavailable, "");
    int tries = 0;
    for (; tries < 50 && !status.ok(); ++tries)
      status = ConnectStream(*honest, server.address(), TokenOf({Role::kInference}));
    EXPECT_TRUE(status.ok()) << "kept out: " << status.ToString();
    RecordProperty("tries", tries);
    EXPECT_EQ(server.Next().what, "open");
    honest->Abort();
    EXPECT_EQ(server.Next().what, "closed");
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // They keep what is freed.
  EXPECT_LT(MemoryNow() - before, size_t{64} << 20);
#else
  (void)before;
#endif
}

}  // namespace
}  // namespace weightcast::stream
