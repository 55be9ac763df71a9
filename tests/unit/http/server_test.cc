#include "http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/strings.h"

namespace weightcast::http {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr size_t kMiB = size_t{1} << 20;

/// Tells the number of an atomic, in events of `bytes`.
class Numbers final : public Feed {
 public:
  Numbers(const std::atomic<int>& number, size_t bytes) : number_(number), bytes_(bytes) {}
  Text Next(TimePoint, TimePoint&) override {
    const int now = number_.load();
    if (now == told_) return nullptr;
    told_ = now;
    return std::make_shared<const std::string>(StrCat("data: ", now, std::string(bytes_, ' '), "\n\n"));
  }

 private:
  const std::atomic<int>& number_;
  const size_t bytes_;
  int told_ = 0;
};

class HttpServer : public ::testing::Test {
 protected:
  void Start(Server::Options options = {}) {
    options.place = *Place::Parse("127.0.0.1:0", "test", 1);
    options.thread_name = "wc-test";
    options.answer_to = [this](const Request& request) -> Answer {
      if (request.path == "/feed") return std::make_unique<Numbers>(number_, 0);
      if (request.path == "/wide") return std::make_unique<Numbers>(number_, kMiB);
      if (request.path == "/large")
        return Response{.body = std::make_shared<const std::string>(16 * kMiB, 'x')};
      if (request.path != "/") return PlainResponse(404, "nothing here");
      return PlainResponse(200, StrCat("query ", request.query, ", host ", request.host));
    };
    auto started = Server::Start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    server_ = std::move(*started);
  }
  UniqueFd Open(std::string_view request = "") {
    auto fd = Connect(server_->address(), In(10.0));
    EXPECT_TRUE(fd.ok()) << fd.status().ToString();
    if (!request.empty()) {
      EXPECT_TRUE(SendAll(fd->get(), request, In(10.0)).ok());
    }
    return std::move(*fd);
  }
  /// What comes until `end` does, or the connection's end.
  static std::string Read(const UniqueFd& fd, std::string_view end = "\n\n\n\n", double seconds = 20) {
    std::string answer;
    std::vector<char> bytes(1 << 16);
    const TimePoint deadline = In(seconds);
    while (WaitFor(fd.get(), POLLIN, deadline)) {
      const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return answer;
      answer.append(bytes.data(), static_cast<size_t>(got));
      if (answer.find(end) != std::string::npos) return answer;
    }
    return answer + "(no end)";
  }
  std::string Ask(std::string_view request) { return Read(Open(request)); }
  /// Whether the server has ended it, or does soon.
  static bool Ended(const UniqueFd& fd, double seconds = 20) {
    char byte;
    return WaitFor(fd.get(), POLLIN, In(seconds)) && ::recv(fd.get(), &byte, 1, 0) <= 0;
  }
  void Tell(int number) {
    number_ = number;
    server_->Wake();
  }

  std::atomic<int> number_{1};
  std::unique_ptr<Server> server_;
};

TEST(QueryValue, FindsAndDecodes) {
  EXPECT_EQ(QueryValue("token=a%2Fb%3a&x=1", "token"), "a/b:");
  EXPECT_EQ(QueryValue("x=1&token=b", "token"), "b");
  EXPECT_EQ(QueryValue("xtoken=a", "token"), "");
  EXPECT_EQ(QueryValue("token=100%", "token"), "100%");
  EXPECT_EQ(QueryValue("token=%zz%4", "token"), "%zz%4");
  EXPECT_EQ(QueryValue("&&token", "token"), "");
}

TEST(Place, NamesTheSettingInErrors) {
  EXPECT_THAT(Place::Parse("8080", "--http", 8080).status().message(),
              AllOf(HasSubstr("--http is '8080'"), HasSubstr("127.0.0.1:8080")));
  EXPECT_TRUE(*Place::Parse("127.0.0.1:0", "--http", 8080)->IsLoopback());
  EXPECT_FALSE(*Place::Parse("0.0.0.0:0", "--http", 8080)->IsLoopback());
}

TEST_F(HttpServer, AnswersGetAndHeadAndNothingElse) {
  Start();
  EXPECT_THAT(Ask("GET /?a=b HTTP/1.1\r\nHost: me\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\nquery a=b, host me\n"),
                    HasSubstr("Content-Length: 19\r\n")));
  EXPECT_THAT(
      Ask("HEAD /?a=b HTTP/1.1\r\nHost: me\r\n\r\n"),
      AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Length: 19\r\n"), EndsWith("\r\n\r\n")));
  EXPECT_THAT(Ask("GET /other HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(Ask("DELETE / HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, HEAD")));
  EXPECT_THAT(Ask("POST / HTTP/1.1\r\nContent-Length: 50000\r\n\r\n" + std::string(50000, 'x')),
              StartsWith("HTTP/1.1 405"))
      << "an answer reaches a client that is still sending";
}

TEST_F(HttpServer, RefusesWhatIsNoRequest) {
  Start();
  EXPECT_THAT(Ask(std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8) + "\r\n\r\n"),
              StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET / SMTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nX: " + std::string(20000, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask("GET /" + std::string(20000, 'x') + " HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 431"));
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 3000; ++i) many += StrCat("a", i, ": b\r\n");
  EXPECT_THAT(Ask(many + "\r\n"), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200")) << "and serves others";
}

TEST_F(HttpServer, EndsWhoSendsNoWholeRequest) {
  Start({.request = std::chrono::milliseconds(300)});
  const UniqueFd silent = Open();
  const UniqueFd half = Open("GET / HTTP/1.1\r\n");
  EXPECT_TRUE(Ended(half));
  EXPECT_TRUE(Ended(silent));
}

TEST_F(HttpServer, EndsWhoDoesNotReadItsAnswer) {
  Start({.answer = std::chrono::milliseconds(300)});
  const UniqueFd slow = Open("GET /large HTTP/1.1\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::seconds(1));  // Time in which it takes nothing is what is tested.
  EXPECT_LT(Read(slow).size(), 12 * kMiB);
  EXPECT_GT(Ask("GET /large HTTP/1.1\r\n\r\n").size(), 16 * kMiB);
}

TEST_F(HttpServer, TheOldestSilentConnectionMakesRoom) {
  Start({.most = 4});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(Open("GET"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_TRUE(Ended(silent[0]));
  EXPECT_FALSE(Ended(silent[3], 0.1));
}

TEST_F(HttpServer, FeedsTellWhatIsNew) {
  Start();
  const UniqueFd feed = Open("GET /feed HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Read(feed, "data: 1\n\n"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/event-stream"),
                                               Not(HasSubstr("Content-Length")), EndsWith("data: 1\n\n")));
  Tell(2);
  EXPECT_EQ(Read(feed, "\n\n"), "data: 2\n\n");
  EXPECT_THAT(Ask("HEAD /feed HTTP/1.1\r\n\r\n"),
              AllOf(HasSubstr("text/event-stream"), EndsWith("\r\n\r\n")));
}

TEST_F(HttpServer, SilentFeedsCarryComments) {
  Start({.beat = std::chrono::milliseconds(100)});
  const UniqueFd feed = Open("GET /feed HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Read(feed, ":\n\n"), EndsWith("data: 1\n\n:\n\n"));
}

TEST_F(HttpServer, TooManyFeedsAreTurnedAway) {
  Start({.most_feeds = 2});
  const UniqueFd one = Open("GET /feed HTTP/1.1\r\n\r\n");
  UniqueFd two = Open("GET /feed HTTP/1.1\r\n\r\n");
  Read(one, "data: 1\n\n");
  Read(two, "data: 1\n\n");
  EXPECT_THAT(Ask("GET /feed HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  two.reset();
  std::string answer;
  for (const TimePoint end = In(10.0); Clock::now() < end;) {
    answer = Read(Open("GET /feed HTTP/1.1\r\n\r\n"), "data: 1\n\n");
    if (answer.starts_with("HTTP/1.1 200")) break;
  }
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200")) << "a client that has gone leaves its place";
}

TEST_F(HttpServer, ASlowReaderSkipsToTheNewest) {
  Start();
  const UniqueFd feed = Open("GET /wide HTTP/1.1\r\n\r\n");
  for (int i = 2; i <= 200; ++i) Tell(i);
  // The server has taken the last wake-up when it answers somebody else.
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  const std::string all = Read(feed, "data: 200 ");
  EXPECT_THAT(all, HasSubstr("data: 200 "));
  EXPECT_LT(all.size(), 20 * kMiB) << "of 200 MiB";
}

TEST_F(HttpServer, AFeedThatNobodyReadsIsEnded) {
  Start({.answer = std::chrono::milliseconds(300)});
  const UniqueFd feed = Open("GET /wide HTTP/1.1\r\n\r\n");
  const TimePoint end = In(20.0);
  for (int i = 2; Clock::now() < end; ++i) {
    Tell(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pollfd gone{feed.get(), POLLRDHUP, 0};
    if (::poll(&gone, 1, 0) > 0 && (gone.revents & (POLLHUP | POLLERR | POLLRDHUP)) != 0) return;
  }
  FAIL() << "the server holds a client that reads nothing";
}

}  // namespace
}  // namespace weightcast::http
