#include "peertest/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace weightcast::peertest {
namespace {

/// Every member other than by default.
HostReport FullReport() {
  return {.weightcast = "0.1.0",
          .wire = 1,
          .host = "node1",
          .boot_id = "b",
          .instance = "7",
          .address = "10.0.0.1",
          .interface = "eth0",
          .mtu = 9000,
          .mbit = 100'000,
          .rdma = "no RDMA device",
          .rdma_remedy = "ip link set eth0 up",
          .unix_seconds = 1.5};
}
LinkPlace FullPlace() {
  return {.addresses = {"10.0.0.1:4711"},
          .incarnation = std::numeric_limits<uint64_t>::max(),
          .descriptor = "00ff"};
}

std::vector<Request> AllRequests() {
  return {AskHello{FullReport(), "10.0.0.2"},
          AskTime{},
          AskBegin{"10.0.0.2"},
          AskReach{{"10.0.0.1:4711"}},
          AskOpen{"tcp", "aa", 104},
          AskMeet{FullPlace(), true},
          AskPong{30},
          AskWrite{65536, 0.5},
          AskShut{},
          AskEnd{},
          AskOrder{"node3:29751", {.seconds = 0.25, .all_sizes = false, .classes = false}},
          AskPiece{450},
          AskCounters{},
          AskDevice{},
          AskDeviceMeet{"00ff"},
          AskDevicePong{30}};
}

std::vector<Reply> AllReplies() {
  return {Done{},
          Hello{FullReport()},
          Time{2.5},
          Echo{"why", 4711, "aa"},
          Reached{{"refused"}},
          Opened{FullPlace()},
          Wrote{{.bytes = 65536, .transfers = 9, .gbit = 1.5}},
          Ordered{700},
          ReportPiece{"{"},
          Counters{{{"mlx5_0:1", 1000, 3}}},
          DevicePlace{"00ff"}};
}

TEST(Messages, ComeBackAsTheyWere) {
  ASSERT_EQ(AllRequests().size(), std::variant_size_v<Request>);
  for (const Request& request : AllRequests()) {
    const std::string body = Encode(request);
    const auto decoded = DecodeRequest(body);
    ASSERT_TRUE(decoded.ok()) << body;
    EXPECT_EQ(decoded->index(), request.index());
    EXPECT_EQ(Encode(*decoded), body);
  }
  ASSERT_EQ(AllReplies().size(), std::variant_size_v<Reply>);
  for (const Reply& reply : AllReplies()) {
    const std::string body = Encode(Result<Reply>(reply));
    const auto decoded = DecodeReply(body);
    ASSERT_TRUE(decoded.ok()) << body;
    EXPECT_EQ(decoded->index(), reply.index());
    EXPECT_EQ(Encode(decoded), body);
  }
}

TEST(Messages, OfFullSizeFitIntoASmallPacket) {
  HostReport report = FullReport();
  report.host = std::string(64, 'h');
  EXPECT_LT(Encode(Request(AskHello{report, "10.0.0.2"})).size(), 500U);
  EXPECT_LT(Encode(Result<Reply>(ReportPiece{std::string(kPieceBytes, '"')})).size(), 1000U);
}

TEST(Messages, CarryErrors) {
  const Result<Reply> error(Status(Code::kExhausted, "busy"));
  const auto decoded = DecodeReply(Encode(error));
  EXPECT_EQ(decoded.status().code(), Code::kExhausted);
  EXPECT_EQ(decoded.status().message(), "busy");
}

TEST(Messages, ThatAreMalformedAreRefused) {
  for (const char* body : {"",
                           "{",
                           "[]",
                           "null",
                           "{}",
                           R"({"ask":"hello"})",
                           R"({"ask":"none","with":{}})",
                           R"({"ask":7,"with":{}})",
                           R"({"ask":"pong","with":{"count":0}})",
                           R"({"ask":"pong","with":{"count":20001}})",
                           R"({"ask":"pong","with":{"count":-1}})",
                           R"({"ask":"pong","with":{"count":"a"}})",
                           R"({"ask":"pong","with":{"count":1.5}})",
                           R"({"ask":"pong","with":{"count":1e300}})",
                           R"({"ask":"pong","with":{"count":4294967326}})",
                           R"({"ask":"pong","with":[]})",
                           R"({"ask":"write","with":{"bytes":17000000,"seconds":1}})",
                           R"({"ask":"write","with":{"bytes":1,"seconds":11}})",
                           R"({"ask":"write","with":{"bytes":1,"seconds":0}})",
                           R"({"ask":"open","with":{"transport":"shm","key":""}})",
                           R"({"ask":"open","with":{"transport":"tcp","key":"","traffic_class":256}})",
                           R"({"ask":"order","with":{"target":"a","plan":{"seconds":1e300}}})",
                           R"({"ask":"begin","with":{"address":"\u0007"}})",
                           R"({"ask":"meet","with":{"place":{"incarnation":0}}})",
                           R"({"ask":"meet","with":{"place":{"incarnation":-1}}})",
                           R"({"ask":"meet","with":{"place":{"incarnation":18446744073709551616}}})"})
    EXPECT_EQ(DecodeRequest(body).status().code(), Code::kProtocol) << body;
  for (const char* body : {"", "{}", R"({"error":0,"text":"x"})", R"({"error":99,"text":"x"})",
                           R"({"error":3})", R"({"error":3.5,"text":"x"})",
                           R"({"error":4294967299,"text":"x"})", R"({"reply":"echo","with":{"port":65536}})",
                           R"({"reply":"counters","with":{"ports":[{"name":"a","packets":-1}]}})"})
    EXPECT_EQ(DecodeReply(body).status().code(), Code::kProtocol) << body;
  EXPECT_EQ(DecodeRequest(std::string(kMostBody + 1, ' ')).status().code(), Code::kProtocol);
}

TEST(Messages, TextOfOthersIsMadePrintable) {
  HostReport report = FullReport();
  report.host = std::string("a\x1b[31m\n") + std::string(500, 'x');
  const auto decoded = DecodeReply(Encode(Result<Reply>(Hello{report})));
  ASSERT_TRUE(decoded.ok());
  const std::string host = std::get<Hello>(*decoded).report.host;
  EXPECT_EQ(host.substr(0, 7), "a?[31m?");
  EXPECT_EQ(host.size(), 256U);
}

TEST(Messages, FactsComeBackAsTheyWereAndAreAscii) {
  PeerFacts facts{.target = "n\xc3\xa4me",
                  .failure = {"busy", "why"},
                  .here = FullReport(),
                  .there = FullReport(),
                  .connect_seconds = 1,
                  .clock_ahead = 2,
                  .clock_within = 3,
                  .mtu = {"e", 1500, 1400, true},
                  .ports = {{"a"}, {"b"}, 1, 2},
                  .transports = {{"tcp",
                                  "s",
                                  "e",
                                  "c",
                                  {1, 2, 3, 4, 5, 6, 7},
                                  {7, 6, 5, 4, 3, 2, 1},
                                  "d",
                                  {{1, 2, 3}},
                                  {{4, 5, 6}},
                                  7,
                                  8,
                                  {{"mlx5_0:1", 9, 1}},
                                  {{"mlx5_1:1", 8, 2}}}},
                  .classes = {"e", 104, true, {1}, {2}, {3}, {4}, {5}, {6}}};
  const std::string json = Encode(facts);
  for (const char c : json) ASSERT_GE(c, ' ');
  const auto decoded = DecodeFacts(json);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(Encode(*decoded), json);
  EXPECT_EQ(decoded->target, facts.target);
  EXPECT_EQ(decoded->transports.at(0).back.at(0).gbit, 6);
  EXPECT_EQ(decoded->transports.at(0).sent_there.at(0).repeats, 2);
  EXPECT_FALSE(DecodeFacts("[]").ok());
  EXPECT_FALSE(DecodeFacts(R"({"transports":7})").ok());
}

}  // namespace
}  // namespace weightcast::peertest
