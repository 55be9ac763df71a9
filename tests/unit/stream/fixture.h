#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/socket.h"
#include "base/strings.h"
#include "stream/client.h"
#include "stream/identity.h"
#include "stream/keys.h"
#include "stream/server.h"
#include "stream/tls.h"
#include "stream/token.h"

/// Servers, clients and recorders for the tests of streams. What does not happen within kLong fails the test.
namespace weightcast::stream {

using namespace std::chrono_literals;

inline constexpr uint32_t kVersion = 7;
inline constexpr int kMany = 200;
inline constexpr auto kLong = std::chrono::seconds(60);
inline constexpr std::string_view kMaster = "91f2c5d08b3a47e6a1d90c4be8f37265";
inline constexpr std::string_view kOtherMaster = "0b7de44a92c8135f6e01ab39d7f2885c";

inline const Member kTrainerMember{.role = Role::kTrainer};

inline TimePoint Soon() { return Clock::now() + kLong; }
inline MasterToken Master(std::string_view text = kMaster) { return *MasterToken::Parse(text); }
inline RoleToken TokenOf(const Member& member, std::string_view master = kMaster) {
  return *RoleToken::Derive(Master(master), member);
}
inline ClientKeys KeysOf(const RoleToken& token, Purpose purpose = Purpose::kControl) {
  return *ClientKeysOf(token, purpose, kVersion);
}
inline ClientKeys TrainerKeys() { return KeysOf(TokenOf(kTrainerMember)); }

/// A server that keeps what its handlers are told.
class TestServer {
 public:
  struct Told {
    std::string what;  ///< "open", "message", "closed".
    std::shared_ptr<ServerStream> stream;
    std::string body = {};
    Status reason = {};
  };
  /// Called on the server's thread after it is kept.
  std::function<void(const Told&)> also = {};

  void Start(size_t most_queued = size_t{4} << 20, Duration patience = 20s, uint32_t version = kVersion,
             size_t most_handshakes = 256) {
    auto server = StreamServer::Start(
        {.host = "127.0.0.1",
         .version = version,
         .master = Master(),
         .lease = kLong,
         .most_queued = most_queued,
         .patience = patience,
         .most_handshakes = most_handshakes,
         .handlers = {.on_open = [this](const auto& stream) { Keep({"open", stream}); },
                      .on_message = [this](const auto& stream,
                                           std::string body) { Keep({"message", stream, std::move(body)}); },
                      .on_closed = [this](const auto& stream,
                                          const Status& reason) { Keep({"closed", stream, "", reason}); }}});
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  ~TestServer() {
    if (server_ != nullptr) server_->Stop();
  }
  /// The next that is told.
  Told Next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLong, [&] { return !told_.empty(); })) return {"nothing", nullptr};
    Told told = std::move(told_.front());
    told_.pop_front();
    return told;
  }
  /// Whether nobody was ever heard.
  bool silent() {
    const std::lock_guard lock(mutex_);
    return told_.empty();
  }
  /// Runs it on the server's thread and waits for it.
  void Do(const std::function<void()>& task) {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    server_->Post([&] {
      task();
      const std::lock_guard lock(mutex);
      done = true;
      changed.notify_one();
    });
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kLong, [&] { return done; }));
  }
  void Send(const std::shared_ptr<ServerStream>& to, std::string_view body) {
    Do([&] { EXPECT_TRUE(to->Send(body).ok()); });
  }
  [[nodiscard]] std::string address() const { return StrCat("127.0.0.1:", server_->port()); }
  [[nodiscard]] SocketAddress socket_address() const { return *SocketAddress::Parse(address()); }
  StreamServer& server() { return *server_; }

 private:
  void Keep(Told told) {
    if (also) also(told);
    const std::lock_guard lock(mutex_);
    told_.push_back(std::move(told));
    changed_.notify_one();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Told> told_;
  std::unique_ptr<StreamServer> server_;
};

using EventKind = ClientStream::Event::Kind;

/// The next event but signs of life and room; kNone after kLong.
inline ClientStream::Event NextOf(ClientStream& client) {
  const TimePoint deadline = Soon();
  while (true) {
    auto event = client.Next(deadline);
    if (event.kind != EventKind::kPartial && event.kind != EventKind::kRoom) return event;
  }
}

inline std::unique_ptr<ClientStream> NewClient() { return std::move(*ClientStream::Create()); }

/// Connects and tells what comes of it.
inline Status ConnectStream(ClientStream& client, const std::string& address, const RoleToken& token,
                            Purpose purpose = Purpose::kControl, uint32_t version = kVersion) {
  const Status status = client.Connect(
      {.address = address, .version = version, .token = token, .purpose = purpose, .lease = kLong});
  if (!status.ok()) return status;
  auto event = NextOf(client);
  if (event.kind == EventKind::kOpened) return Status::Ok();
  return event.kind == EventKind::kClosed ? event.reason : Status(Code::kInternal, "nothing came of it");
}

/// A listener of the test's own, for impostors.
struct TestListener {
  TestListener() : fd(std::move(*Listen(*SocketAddress::Parse("127.0.0.1:0"), {}))) {}
  [[nodiscard]] std::string address() const { return LocalAddressOf(fd.get())->ToString(); }
  UniqueFd AcceptOne() const {
    while (WaitFor(fd.get(), POLLIN, Soon())) {
      auto accepted = Accept(fd.get());
      if (!accepted.ok()) return {};
      if (accepted->valid()) return std::move(*accepted);
    }
    return {};
  }
  UniqueFd fd;
};

/// All that comes until the other side ends or `deadline`.
inline std::string ReceiveToEnd(int fd, TimePoint deadline = Soon()) {
  std::string all;
  char bytes[4096];
  while (WaitFor(fd, POLLIN, deadline)) {
    const ssize_t got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) break;
    all.append(bytes, static_cast<size_t>(got));
  }
  return all;
}

/// One on the network between client and server: passes everything on and keeps it.
class Recorder {
 public:
  using Change = std::function<void(std::string&)>;
  explicit Recorder(SocketAddress to, Change to_server = {}, Change to_client = {})
      : to_(std::move(to)), changes_{std::move(to_server), std::move(to_client)} {
    thread_ = std::thread([this] { Run(); });
  }
  ~Recorder() { Join(); }
  [[nodiscard]] std::string address() const { return listener_.address(); }
  /// Waits until both sides have ended; then the records may be read.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  std::string sent[2];  ///< By the client, by the server.

 private:
  void Run() {
    UniqueFd ends[2] = {listener_.AcceptOne(), std::move(*Connect(to_, Soon()))};
    bool open[2] = {true, true};
    const TimePoint deadline = Soon();
    while ((open[0] || open[1]) && Clock::now() < deadline) {
      pollfd polled[2] = {{open[0] ? ends[0].get() : -1, POLLIN, 0},
                          {open[1] ? ends[1].get() : -1, POLLIN, 0}};
      if (::poll(polled, 2, 1000) <= 0) continue;
      for (int from = 0; from < 2; ++from) {
        if (polled[from].revents != 0) open[from] = Pass(ends[from].get(), ends[1 - from].get(), from);
      }
    }
  }
  bool Pass(int from, int to, int side) {
    char bytes[16384];
    const ssize_t got = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) {
      ::shutdown(to, SHUT_WR);
      return false;
    }
    std::string passed(bytes, static_cast<size_t>(got));
    sent[side] += passed;
    if (changes_[side]) changes_[side](passed);
    return SendAll(to, passed, Soon()).ok();
  }
  TestListener listener_;
  SocketAddress to_;
  Change changes_[2];
  std::thread thread_;
};

/// Passes what two sessions say between them until both are silent.
inline void Shuttle(TlsSession& client, TlsSession& server) {
  Status status[2];
  std::string plaintext;
  std::string bytes;
  status[0] = client.Receive("", plaintext);
  for (int round = 0; round < 8; ++round) {
    bytes.clear();
    client.TakeOutput(bytes);
    if (!bytes.empty() && status[1].ok()) status[1] = server.Receive(bytes, plaintext);
    bytes.clear();
    server.TakeOutput(bytes);
    if (!bytes.empty() && status[0].ok()) status[0] = client.Receive(bytes, plaintext);
  }
}

inline TlsSession ClientSession(const ClientKeys& keys, uint32_t version = kVersion) {
  auto context = TlsContext::Make(TlsContext::Side::kClient, ProtocolName(version));
  return std::move(*TlsSession::Begin(*context, {keys.identity, keys.key}));
}
inline TlsSession ServerSession(const std::string& identity, const Secret& key, uint32_t version = kVersion) {
  auto context = TlsContext::Make(TlsContext::Side::kServer, ProtocolName(version));
  return std::move(*TlsSession::Begin(*context, {identity, key}));
}
/// What a client sends first.
inline std::string ClientHelloOf(const ClientKeys& keys, uint32_t version = kVersion) {
  TlsSession session = ClientSession(keys, version);
  std::string bytes;
  (void)session.Receive("", bytes);
  session.TakeOutput(bytes);
  return bytes;
}

}  // namespace weightcast::stream
