#include "stream/client.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fixture.h"
#include "impostor.h"
#include "stream/connection.h"
#include "stream/frame.h"
#include "stream/proof.h"

namespace weightcast::stream {
namespace {

using ::testing::HasSubstr;

Status ConnectAt(const std::string& address, const RoleToken& token = TokenOf({Role::kTrainer}),
                 uint32_t version = kVersion) {
  const auto client = NewClient();
  return ConnectStream(*client, address, token, Purpose::kControl, version);
}

/// Answers connections one after another with `answer`, until it ends.
class Answers {
 public:
  Answers(const TestListener& listener, std::function<void(UniqueFd)> answer)
      : listener_(listener), thread_([this, answer = std::move(answer)] {
          for (UniqueFd fd = listener_.AcceptOne(); fd.valid(); fd = listener_.AcceptOne())
            answer(std::move(fd));
        }) {}
  ~Answers() {
    ::shutdown(listener_.fd.get(), SHUT_RDWR);
    thread_.join();
  }

 private:
  const TestListener& listener_;
  std::thread thread_;
};

void EndAfter(const UniqueFd& fd, std::string_view bytes) {
  char hello[2048];
  if (WaitFor(fd.get(), POLLIN, Soon())) (void)::recv(fd.get(), hello, sizeof hello, 0);
  (void)SendAll(fd.get(), bytes, Soon());
  ::shutdown(fd.get(), SHUT_WR);
  ReceiveToEnd(fd.get());
}

TEST(ClientStream, SaysWhichMistakeTheTokenIs) {
  TestServer server;
  server.Start();
  const Status job = ConnectAt(server.address(), TokenOf({Role::kTrainer}, kOtherMaster));
  EXPECT_EQ(job.code(), Code::kPermission);
  EXPECT_THAT(job.message(), HasSubstr("does not know this token"));
  EXPECT_THAT(job.message(), HasSubstr(server.address()));

  // A token of one role that says that it is of another.
  std::string text(TokenOf({Role::kInference, "a"}).Print().bytes());
  text.replace(text.find("/a:"), 3, "/b:");
  const Status role = ConnectAt(server.address(), *RoleToken::Parse(text));
  EXPECT_EQ(role.code(), Code::kPermission);
  EXPECT_THAT(role.message(), HasSubstr("refuses this token"));
  EXPECT_TRUE(server.silent());
}

TEST(ClientStream, WithATokenOfAnotherRoleIsNeverTaken) {
  TestServer server;
  server.Start();
  for (int i = 0; i < kMany; ++i) {
    std::string text(TokenOf({Role::kInference}).Print().bytes());
    text.replace(text.find("inference"), 9, "trainer");
    ASSERT_EQ(ConnectAt(server.address(), *RoleToken::Parse(text)).code(), Code::kPermission);
  }
  EXPECT_TRUE(server.silent());
}

TEST(ClientStream, SaysThatVersionsDiffer) {
  TestServer server;
  server.Start();
  const Status status = ConnectAt(server.address(), TokenOf({Role::kTrainer}), kVersion + 1);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_THAT(status.message(), HasSubstr("another version"));
}

TEST(ClientStream, SaysThatNobodyListens) {
  std::string address;
  {
    const TestListener listener;
    address = listener.address();
  }
  const Status status = ConnectAt(address);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("Connection refused"));
  EXPECT_THAT(status.message(), HasSubstr("check that the controller runs"));
}

TEST(ClientStream, SaysThatThereIsNoSuchHost) {
  const Status status = ConnectAt("no-such-host.invalid:1");
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("no-such-host.invalid"));
  EXPECT_THAT(status.message(), HasSubstr("name servers"));
  EXPECT_EQ(ConnectAt("nowhere").code(), Code::kInvalidArgument);
}

TEST(ClientStream, SaysWhatElseListens) {
  struct Other {
    std::string_view answer;
    Code code;
    std::string_view text;
  };
  const std::vector<Other> others = {
      {"HTTP/1.1 400 Bad Request\r\n\r\n", Code::kProtocol, "not a weightcast controller"},
      {"SSH-2.0-OpenSSH_9.2\r\n", Code::kProtocol, "not a weightcast controller"},
      {std::string_view("\0\0\x06\4\0\0\0\0\0\0\4\0\0\xff\xff", 15), Code::kProtocol, "older release"},
      {"", Code::kUnavailable, "older release"},
      {std::string_view("\x15\x03\x03\0\2\2\x46", 7), Code::kProtocol, "not a weightcast controller"}};
  for (const Other& other : others) {
    const TestListener listener;
    const Answers answers(listener, [&](const UniqueFd& fd) { EndAfter(fd, other.answer); });
    const Status status = ConnectAt(listener.address());
    EXPECT_EQ(status.code(), other.code) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(std::string(other.text)));
    EXPECT_THAT(status.message(), HasSubstr(listener.address()));
  }
}

/// Serves TLS of its own at a connection until the client ends it.
void ServeTls(const UniqueFd& fd, SSL_CTX* context) {
  const Session impostor(SSL_new(context), &SSL_free);
  SSL_set_accept_state(impostor.get());
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(impostor.get(), in, out);
  char bytes[4096];
  while (WaitFor(fd.get(), POLLIN, Soon())) {
    const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return;
    BIO_write(in, bytes, static_cast<int>(got));
    SSL_do_handshake(impostor.get());
    const int answer = BIO_read(out, bytes, sizeof bytes);
    if (answer > 0) (void)SendAll(fd.get(), {bytes, static_cast<size_t>(answer)}, Soon());
  }
}

TEST(ClientStream, NeverTakesAnImpostorWithACertificateOfItsOwn) {
  const TestListener listener;
  const Context context = SelfSignedServer();
  const Answers answers(listener, [&](const UniqueFd& fd) { ServeTls(fd, context.get()); });
  for (int i = 0; i < kMany; ++i) {
    const Status status = ConnectAt(listener.address());
    ASSERT_EQ(status.code(), Code::kPermission) << status.ToString();
    ASSERT_THAT(status.message(), HasSubstr("does not prove to be the controller"));
  }
}

/// Poses as the controller with the role's own key, which each worker of the role has; `first` is its first
/// frame.
void Pose(UniqueFd fd, const std::function<std::string(const TlsSession&)>& first) {
  const ClientKeys keys = KeysOf(TokenOf({Role::kTrainer}));
  Connection connection(std::move(fd), ServerSession(keys.identity, keys.key), size_t{1} << 20);
  bool said = false;
  while (connection.end().ok() && WaitFor(connection.fd(), POLLIN, Soon())) {
    connection.Read();
    if (connection.tls().established() && !std::exchange(said, true)) {
      (void)connection.Queue(FrameKind::kProof, first(connection.tls()));
      (void)connection.Queue(FrameKind::kData, "serve version 2");
    }
    if (!connection.Flush().ok()) return;
  }
}

TEST(ClientStream, NeverTakesAWorkerThatPosesAsTheController) {
  const TestListener listener;
  // It signs with keys that it can have, or replays what the controller has signed for itself.
  const std::string replayed = Master().Controller().Sign("something else");
  int turn = 0;
  const Answers answers(listener, [&](UniqueFd fd) {
    Pose(std::move(fd), [&](const TlsSession& session) {
      switch (turn++ % 3) {
        case 0:
          return *ProveController(session, Master(kOtherMaster).Controller());
        case 1:
          return replayed;
        default:
          return std::string(kSignatureBytes, '\0');
      }
    });
  });
  for (int i = 0; i < kMany; ++i) {
    const Status status = ConnectAt(listener.address());
    ASSERT_EQ(status.code(), Code::kPermission) << status.ToString();
    ASSERT_THAT(status.message(), HasSubstr("but not the controller's"));
  }
}

TEST(ClientStream, BelievesNothingBeforeTheProof) {
  const TestListener listener;
  const Answers answers(listener, [&](UniqueFd fd) {
    const ClientKeys keys = KeysOf(TokenOf({Role::kTrainer}));
    Connection connection(std::move(fd), ServerSession(keys.identity, keys.key), size_t{1} << 20);
    (void)connection.Queue(FrameKind::kData, "serve version 2");
    while (connection.end().ok() && WaitFor(connection.fd(), POLLIN, Soon())) {
      connection.Read();
      if (!connection.Flush().ok()) return;
    }
  });
  EXPECT_EQ(ConnectAt(listener.address()).code(), Code::kPermission);
}

TEST(ClientStream, TakesTheTrueControllerInTheSamePose) {
  const TestListener listener;
  const Answers answers(listener, [&](UniqueFd fd) {
    Pose(std::move(fd),
         [](const TlsSession& session) { return *ProveController(session, Master().Controller()); });
  });
  const auto client = NewClient();
  EXPECT_TRUE(ConnectStream(*client, listener.address(), TokenOf({Role::kTrainer})).ok());
  EXPECT_EQ(NextOf(*client).body, "serve version 2");
  client->Abort();
}

TEST(ClientStream, DropsAFrameTooLong) {
  const TestListener listener;
  const Answers answers(listener, [&](UniqueFd fd) {
    const ClientKeys keys = KeysOf(TokenOf({Role::kTrainer}));
    TlsSession session = ServerSession(keys.identity, keys.key);
    char bytes[4096];
    std::string plaintext;
    while (!session.established() && WaitFor(fd.get(), POLLIN, Soon())) {
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, 0);
      if (got <= 0 || !session.Receive({bytes, static_cast<size_t>(got)}, plaintext).ok()) return;
      std::string answer;
      session.TakeOutput(answer);
      (void)SendAll(fd.get(), answer, Soon());
    }
    std::string frames;
    AppendFrame(frames, FrameKind::kProof, *ProveController(session, Master().Controller()));
    AppendFrame(frames, FrameKind::kData, std::string(kMostFrameBytes + 1, 'x'));
    (void)session.Send(std::string_view(frames).substr(0, 200));
    std::string answer;
    session.TakeOutput(answer);
    (void)SendAll(fd.get(), answer, Soon());
    ReceiveToEnd(fd.get());
  });
  const auto client = NewClient();
  EXPECT_TRUE(ConnectStream(*client, listener.address(), TokenOf({Role::kTrainer})).ok());
  const auto event = NextOf(*client);
  EXPECT_EQ(event.kind, EventKind::kClosed);
  EXPECT_EQ(event.reason.code(), Code::kProtocol);
}

TEST(ClientStream, WakesFromAnyThreadAndWaitsNoLongerThanAsked) {
  const auto client = NewClient();
  EXPECT_EQ(client->Next(Clock::now()).kind, EventKind::kNone);
  EXPECT_EQ(client->Next(Clock::now() + 10ms).kind, EventKind::kNone);
  std::thread waker([&] { client->Wake(); });
  EXPECT_EQ(client->Next(Soon()).kind, EventKind::kWoken);
  waker.join();
  EXPECT_EQ(client->Send("x").code(), Code::kCancelled);
}

TEST(ClientStream, AbortsWhileItLooks) {
  const TestListener silent;
  const auto client = NewClient();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client
                    ->Connect({.address = silent.address(),
                               .version = kVersion,
                               .token = TokenOf({Role::kTrainer}),
                               .lease = kLong})
                    .ok());
    EXPECT_EQ(client->Next(Clock::now() + 20ms).kind, EventKind::kNone);
    EXPECT_TRUE(client->active());
    client->Abort();
    EXPECT_FALSE(client->active());
  }
  TestServer server;
  server.Start();
  EXPECT_TRUE(ConnectStream(*client, server.address(), TokenOf({Role::kTrainer})).ok());
}

TEST(ClientStream, ConnectsAgainAfterTheEnd) {
  const auto client = NewClient();
  for (int i = 0; i < 3; ++i) {
    TestServer server;
    server.Start();
    ASSERT_TRUE(ConnectStream(*client, server.address(), TokenOf({Role::kTrainer})).ok());
    server.server().Stop();
    EXPECT_EQ(NextOf(*client).kind, EventKind::kClosed);
  }
}

TEST(ClientStream, SaysThatThereAreNoDescriptors) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "UBSan's check of vptr opens a pipe: without descriptors it takes every object for a wrong one";
#endif
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(0);
  ::close(next);
  int refused = 0;
  Status made(Code::kExhausted, "");
  for (rlim_t free = 0; !made.ok(); ++free) {
    ASSERT_LT(free, 20U);
    const rlimit little{.rlim_cur = static_cast<rlim_t>(next) + free, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &little), 0);
    made = ClientStream::Create().status();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    if (made.ok()) continue;
    ++refused;
    EXPECT_EQ(made.code(), Code::kExhausted) << made.ToString();
  }
  EXPECT_GE(refused, 4) << "it needs several, and does without each in turn";
}

TEST(ClientStream, DropsItselfWhereNobodyReads) {
  TestServer server;
  server.also = [](const TestServer::Told& told) {
    if (told.what == "open") told.stream->Pause();
  };
  server.Start();
  const auto client = NewClient();
  ASSERT_TRUE(ConnectStream(*client, server.address(), TokenOf({Role::kTrainer})).ok());
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = client->Send(std::string(size_t{64} << 10, 'x'));
    if (status.ok()) (void)client->Next(Clock::now());
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  const auto event = NextOf(*client);
  EXPECT_EQ(event.kind, EventKind::kClosed);
  EXPECT_EQ(event.reason.code(), Code::kExhausted);
}

}  // namespace
}  // namespace weightcast::stream
