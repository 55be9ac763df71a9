#include "http/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>

#include "base/socket.h"
#include "base/strings.h"
#include "trace/metrics.h"

namespace weightcast::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kAnywhere = "127.0.0.1:0";

TimePoint Soon() { return Clock::now() + std::chrono::seconds(10); }

/// Everything that comes after `request`.
std::string Ask(const std::string& address, std::string_view request) {
  auto socket = Connect(*SocketAddress::Parse(address), Soon());
  if (!socket.ok()) return socket.status().ToString();
  EXPECT_TRUE(SendAll(socket->get(), request, Soon()).ok());
  std::string answer;
  char bytes[4096];
  while (WaitFor(socket->get(), POLLIN, Soon())) {
    const ssize_t got = ::recv(socket->get(), bytes, sizeof bytes, 0);
    if (got <= 0) break;
    answer.append(bytes, static_cast<size_t>(got));
  }
  return answer;
}

TEST(Exporter, AnswersWhatPrometheusAsks) {
  trace::CounterNamed("prom.asked").Add();
  const auto exporter = Exporter::For(kAnywhere);
  ASSERT_TRUE(exporter.ok()) << exporter.status().ToString();
  const std::string address = (*exporter)->address();
  const std::string answer = Ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("version=0.0.4"),
                            HasSubstr("\nweightcast_prom_asked_total 1\n")));
  EXPECT_THAT(Ask(address, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask(address, "POST /metrics HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, HEAD")));
  EXPECT_THAT(Ask(address, std::string(20000, 'x')), StartsWith("HTTP/1.1 4")) << "no request is as long";
  EXPECT_THAT(Ask(address, "GET /metrics HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200")) << "and it goes on";
}

TEST(Exporter, AnswersBesideManyWhoSayNothing) {
  const auto exporter = Exporter::For(kAnywhere);
  ASSERT_TRUE(exporter.ok()) << exporter.status().ToString();
  const std::string address = (*exporter)->address();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(*Connect(*SocketAddress::Parse(address), Soon()));
  const TimePoint begin = Clock::now();
  EXPECT_THAT(Ask(address, "GET /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8)) << "one after another they took two seconds each";
}

TEST(Exporter, IsSharedWithinTheProcess) {
  const auto one = Exporter::For(kAnywhere);
  const auto other = Exporter::For(kAnywhere);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->get(), other->get());
}

TEST(Exporter, PortZeroIsAnyFreeOne) {
  const auto one = Exporter::For(kAnywhere);
  const auto other = Exporter::For("localhost:0");
  ASSERT_TRUE(one.ok() && other.ok()) << one.status().ToString() << other.status().ToString();
  EXPECT_NE((*one)->address(), (*other)->address());
}

TEST(Exporter, SaysWhatIsWrongWithAnAddress) {
  EXPECT_THAT(Exporter::For("9470").status().message(), HasSubstr("host:port"));
  EXPECT_EQ(Exporter::For("127.0.0.1:x").status().code(), Code::kInvalidArgument);
  const auto first = Exporter::For(kAnywhere);
  ASSERT_TRUE(first.ok());
  const auto port = SocketAddress::Parse((*first)->address())->port();
  const auto taken = Exporter::For(StrCat("127.0.0.1:", port));
  EXPECT_THAT(taken.status().message(), HasSubstr("in use"));
}

}  // namespace
}  // namespace weightcast::http
