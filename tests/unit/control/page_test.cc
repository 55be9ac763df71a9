#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>

#include "base/socket.h"
#include "base/strings.h"
#include "control/page_json.h"
#include "control/page_server.h"
#include "control/page_state.h"
#include "unit/control/tokens.h"

namespace weightcast::control {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

UpdateRecord RecordOf(int64_t number) {
  UpdateRecord record{
      .model = "policy", .ended = 1000, .done = {}, .moments = {{"start", 0.25}, {"done", 2}}};
  record.done.version = {.run = 1, .number = number};
  record.done.met_policy = true;
  return record;
}

TEST(PageState, KeepsTheLastUpdatesAndTheSlowestRoutes) {
  PageState state;
  for (int i = 1; i <= 250; ++i) {
    UpdateRecord record = RecordOf(i);
    for (uint32_t rank = 0; rank < 40; ++rank)
      record.done.routes.push_back({.sender = {.role = protocol::Role::kTrainer, .engine = "", .rank = rank},
                                    .receiver = {},
                                    .bytes = 1,
                                    .seconds = rank * 1.0});
    state.Add(std::move(record));
  }
  const auto all = state.UpdatesAfter(0);
  ASSERT_EQ(all.size(), PageState::kMostUpdates);
  EXPECT_EQ(all.front()->number, 51U);
  ASSERT_EQ(all.back()->done.routes.size(), 16U);
  EXPECT_EQ(all.back()->done.routes[0].sender.rank, 39U);
  EXPECT_EQ(state.UpdatesAfter(249).size(), 1U);
  EXPECT_TRUE(state.UpdatesAfter(250).empty());
}

Explained ExplainedOf(uint64_t sequence, const char* text) {
  Explained explained;
  explained.timeline.model = "policy";
  explained.timeline.id.sequence = sequence;
  explained.verdict.text = text;
  explained.verdict.remedy = "do this";
  return explained;
}

TEST(PageState, AVerdictIsAChangeOfItsUpdate) {
  PageState state;
  for (uint64_t i = 1; i <= 3; ++i) {
    UpdateRecord record = RecordOf(static_cast<int64_t>(i));
    record.done.update.sequence = 10 + i;
    state.Add(std::move(record));
  }
  state.Explain(ExplainedOf(12, "the link of b"));
  const auto changed = state.UpdatesAfter(3);
  ASSERT_EQ(changed.size(), 1U);
  EXPECT_EQ(changed[0]->number, 2U);
  EXPECT_EQ(changed[0]->change, 4U);
  EXPECT_EQ(changed[0]->verdict.text, "the link of b");
  state.Explain(ExplainedOf(12, "the link of b"));
  state.Explain(ExplainedOf(99, "of an update that nobody keeps"));
  Explained other_term = ExplainedOf(12, "of another term");
  other_term.timeline.id.term.number = 2;
  state.Explain(other_term);
  EXPECT_TRUE(state.UpdatesAfter(4).empty());
  EXPECT_EQ(state.UpdatesAfter(0).size(), 3U);
  const std::string json = UpdateJson(*changed[0]);
  EXPECT_THAT(json, HasSubstr(R"("verdict":{"slow":false,"text":"the link of b","remedy":"do this"})"));
  EXPECT_THAT(UpdateJson(*state.UpdatesAfter(0)[0]), Not(HasSubstr("verdict")));
}

TEST(PageJson, SaysWhereEachConnectionComesFromAndWhatItMoved) {
  protocol::ClusterView view{.term = {.number = 7}, .job = "a \"job\"\xff", .models = {}};
  protocol::ModelView& model = view.models.emplace_back();
  model.model = "policy";
  const protocol::WorkerName trainer{.role = protocol::Role::kTrainer, .engine = "", .rank = 0};
  const protocol::WorkerName rank{.role = protocol::Role::kInference, .engine = "a: b", .rank = 0};
  model.workers.resize(2);
  model.workers[0].name = trainer;
  model.workers[1].name = rank;
  model.workers[1].host = "</script>";
  model.workers[1].connections = {"trainer 0: shm: ring", StrCat(ToString(rank), ": tcp")};
  model.routes.push_back({.sender = trainer, .receiver = rank, .bytes = 8, .seconds = 0.5});
  const std::string json = StateJson(view);
  EXPECT_THAT(json, HasSubstr(R"("job":"a \"job\")"
                              "\xef\xbf\xbd\""));
  EXPECT_THAT(json, HasSubstr(R"({"from":"trainer 0","to":"engine a: b rank 0","path":"shm: ring",)"
                              R"("last":{"bytes":8,"seconds":0.5}})"));
  EXPECT_THAT(
      json, HasSubstr(R"({"from":"engine a: b rank 0","to":"engine a: b rank 0","path":"tcp","last":null})"));
  EXPECT_THAT(json, Not(HasSubstr("\n")));
}

TEST(PageJson, SaysHowAnUpdateEndedAndWhy) {
  UpdateRecord record = RecordOf(3);
  record.number = 9;
  record.done.met_policy = false;
  record.done.reason = Status(Code::kPeerDead, "too few engines");
  record.done.engines.resize(1);
  record.done.engines[0].engine = "b";
  record.done.engines[0].reason = Status(Code::kPeerDead, "rank 1 is lost");
  const std::string json = UpdateJson(record);
  EXPECT_THAT(json, HasSubstr(R"({"number":9,"model":"policy",)"));
  EXPECT_THAT(json, HasSubstr(R"("committed":false,"reason":"too few engines")"));
  EXPECT_THAT(json, HasSubstr(R"("engines":[{"name":"b","committed":false,"reason":"rank 1 is lost"}])"));
  EXPECT_THAT(json,
              HasSubstr(R"("moments":[{"name":"start","seconds":0.25},{"name":"done","seconds":2.0}])"));
}

/// A page without a controller: the test shows what it likes.
class PageTest : public ::testing::Test {
 protected:
  void Start(const std::string& where = "127.0.0.1:0") {
    auto page = PageServer::Start(where, *Token::Parse(kFirstToken, /*configured=*/true, "here"), state_);
    ASSERT_TRUE(page.ok()) << page.status().ToString();
    page_ = std::move(*page);
    state_->Show({.term = {.number = 7}, .job = "j", .models = {}});
  }
  /// The line that names this change.
  std::string Id(int change) const { return StrCat("id: ", state_->feed(), ".", change, "\n"); }
  UniqueFd ConnectStream(const std::string& path, std::string_view headers = "") {
    SocketAddress address =
        *SocketAddress::Parse(StrCat("127.0.0.1:", SocketAddress::Parse(page_->address())->port()));
    auto fd = Connect(address, In(10.0));
    EXPECT_TRUE(fd.ok());
    EXPECT_TRUE(
        weightcast::SendAll(fd->get(), StrCat("GET ", path, " HTTP/1.1\r\n", headers, "\r\n"), In(10.0))
            .ok());
    return std::move(*fd);
  }
  /// What comes until `end` does, or the connection's end.
  static std::string Read(const UniqueFd& fd, std::string_view end) {
    std::string answer;
    char bytes[4096];
    while (WaitFor(fd.get(), POLLIN, In(10.0))) {
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, 0);
      if (got <= 0) break;
      answer.append(bytes, static_cast<size_t>(got));
      if (!end.empty() && answer.find(end) != std::string::npos) break;
    }
    return answer;
  }
  std::string Get(const std::string& path, std::string_view headers = "") {
    return Read(ConnectStream(path, headers), "");
  }

  const std::shared_ptr<PageState> state_ = std::make_shared<PageState>();
  std::unique_ptr<PageServer> page_;
};

TEST_F(PageTest, EventsAreStateThenUpdatesThenWhatIsNew) {
  Start();
  state_->Add(RecordOf(1));
  state_->Add(RecordOf(2));
  const UniqueFd events = ConnectStream("/api/events");
  const std::string first = Read(events, Id(2));
  EXPECT_LT(first.find("event: state\n"), first.find(Id(1)));
  state_->Add(RecordOf(3));
  EXPECT_THAT(Read(events, Id(3)), HasSubstr("event: update\n"));
  state_->Show({.term = {.number = 7}, .job = "other", .models = {}});
  EXPECT_THAT(Read(events, "\"other\""), HasSubstr("event: state\n"));
  UpdateRecord last = RecordOf(4);
  last.done.update.sequence = 4;
  state_->Add(std::move(last));
  Read(events, Id(4));
  state_->Explain(ExplainedOf(4, "the link of b"));
  EXPECT_THAT(Read(events, "\n\n"), AllOf(HasSubstr(Id(5)), HasSubstr("the link of b")));
  const std::string all = Get("/api/updates");
  EXPECT_LT(all.find(R"("number":3,)"), all.find(R"("number":4,)"));
}

TEST_F(PageTest, AReconnectingClientGetsWhatItMissed) {
  Start();
  for (int i = 1; i <= 3; ++i) state_->Add(RecordOf(i));
  const std::string missed =
      Read(ConnectStream("/api/events", StrCat("Last-Event-ID: ", state_->feed(), ".2\r\n")), Id(3));
  EXPECT_THAT(missed, Not(HasSubstr(Id(2))));
  const std::string& feed = state_->feed();
  for (const std::string& other : {feed + "1.2", feed, std::string("x.y"), feed + ".99999999999999999999"}) {
    const std::string all =
        Read(ConnectStream("/api/events", StrCat("Last-Event-ID: ", other, "\r\n")), Id(3));
    EXPECT_THAT(all, HasSubstr(Id(1))) << other;
  }
}

TEST_F(PageTest, AStateThatReadsTheSameIsNotSentAgain) {
  Start();
  const UniqueFd events = ConnectStream("/api/events");
  Read(events, "event: state\n");
  state_->Show({.term = {.number = 7}, .job = "j", .models = {}});
  state_->Add(RecordOf(1));
  EXPECT_THAT(Read(events, Id(1)), Not(HasSubstr("event: state\n")));
}

TEST_F(PageTest, BeyondLoopbackOnlyTheObserversTokenReads) {
  Start("0.0.0.0:0");
  const Token master = *Token::Parse(kFirstToken, true, "here");
  const auto printed = master.ForObserver()->Print();
  const std::string token(printed.bytes());
  for (const char* path : {"/", "/api/state", "/api/updates", "/api/events", "/metrics"}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 401")) << path;
    for (const std::string& wrong : {std::string(kFirstToken), token.substr(1), token + "x", std::string()})
      EXPECT_THAT(Get(StrCat(path, "?token=", wrong)), StartsWith("HTTP/1.1 401")) << path;
    EXPECT_THAT(Get(path, StrCat("Authorization: Basic ", token, "\r\n")), StartsWith("HTTP/1.1 401"))
        << path;
    EXPECT_THAT(Read(ConnectStream(StrCat(path, "?token=", token)), "\r\n"), StartsWith("HTTP/1.1 200"))
        << path;
    EXPECT_THAT(Read(ConnectStream(path, StrCat("Authorization: Bearer ", token, "\r\n")), "\r\n"),
                StartsWith("HTTP/1.1 200"))
        << path;
  }
  EXPECT_THAT(Get("/"), HasSubstr("This page needs a token"));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get("/nowhere"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/page.js"), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Security-Policy")));
}

TEST_F(PageTest, OnLoopbackOtherNamesOfThisHostAreRefused) {
  Start();
  for (const char* name : {"localhost:1", "127.0.0.1:1", "[::1]:1", "localhost"})
    EXPECT_THAT(Get("/api/state", StrCat("Host: ", name, "\r\n")), StartsWith("HTTP/1.1 200")) << name;
  for (const char* name : {"evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example"})
    EXPECT_THAT(Get("/api/state", StrCat("Host: ", name, "\r\n")), StartsWith("HTTP/1.1 421")) << name;
}

TEST(PageServer, SaysWhyItDoesNotListen) {
  const auto state = std::make_shared<PageState>();
  const Token own = *Token::Parse(kFirstToken, /*configured=*/false, "the user's file");
  EXPECT_THAT(PageServer::Start("0.0.0.0:0", own, state).status().ToString(),
              AllOf(HasSubstr("loopback only"), HasSubstr("WEIGHTCAST_TOKEN")));
  EXPECT_THAT(PageServer::Start("8080", own, state).status().message(), HasSubstr("--http is '8080'"));
  const auto first = PageServer::Start("127.0.0.1:0", own, state);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(PageServer::Start((*first)->address(), own, state).status().message(), HasSubstr("in use"));
}

TEST(PageServer, IsUnhealthyWhileTheControllerShowsNothing) {
  const auto state = std::make_shared<PageState>();
  const auto page = PageServer::Start("127.0.0.1:0", *Token::Parse(kFirstToken, false, "here"), state);
  ASSERT_TRUE(page.ok());
  auto fd = Connect(*SocketAddress::Parse((*page)->address()), In(10.0));
  ASSERT_TRUE(fd.ok());
  ASSERT_TRUE(weightcast::SendAll(fd->get(), "GET /healthz HTTP/1.1\r\n\r\n", In(10.0)).ok());
  char answer[12] = {};
  ASSERT_TRUE(ReceiveAll(fd->get(), answer, sizeof answer, In(10.0)).ok());
  EXPECT_EQ(std::string_view(answer, sizeof answer), "HTTP/1.1 503");
}

}  // namespace
}  // namespace weightcast::control
