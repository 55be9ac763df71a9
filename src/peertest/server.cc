#include "peertest/server.h"

#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/socket.h"
#include "base/strings.h"
#include "base/task_thread.h"
#include "base/wall_clock.h"
#include "peertest/describe_host.h"
#include "peertest/messages.h"
#include "peertest/session.h"
#include "protocol/worker_messages.h"
#include "stream/server.h"

namespace weightcast::peertest {
namespace {

using StreamPtr = std::shared_ptr<stream::ServerStream>;

constexpr size_t kMostClients = 512;
constexpr size_t kMostQueued = size_t{256} << 10;
constexpr auto kLongest = std::chrono::minutes(5);  ///< Of one test, where another waits.
constexpr auto kIdle = std::chrono::seconds(60);    ///< Of who has the place and asks nothing.

/// Without the port, and an IPv4 address that came to a socket for both as IPv4.
std::string HostOf(const std::string& peer) {
  constexpr std::string_view kMapped = "::ffff:";
  const auto address = SocketAddress::Parse(peer);
  const std::string host = address.ok() ? address->Host() : peer;
  return host.starts_with(kMapped) ? host.substr(kMapped.size()) : host;
}

class Server final : public TestServer {
 public:
  explicit Server(Options options) : options_(std::move(options)) {}

  Status Begin() {
    auto started = stream::StreamServer::Start(
        {.host = options_.host,
         .port = options_.port,
         .version = protocol::kProtocolVersion,
         .master = options_.master,
         .lease = kConversationLease,
         .most_queued = kMostQueued,
         .handlers = {
             .on_open = [this](const StreamPtr& stream) { Open(stream); },
             .on_message = [this](const StreamPtr& stream, const std::string& body) { Take(stream, body); },
             .on_closed = [this](const StreamPtr& stream, const Status& /*why*/) { Close(stream); }}});
    if (!started.ok()) return started.status();
    streams_ = std::move(*started);
    return Status::Ok();
  }

  ~Server() override {
    stopped_ = true;
    if (streams_ != nullptr) streams_->Stop();  // No handler runs from here on.
    if (test_) *test_->ended = true;
  }

  [[nodiscard]] uint16_t port() const override { return streams_->port(); }

 private:
  struct Client {
    bool waits = false;       ///< For an answer.
    std::string report = {};  ///< Of its order.
  };
  /// Who has the place.
  struct RunningTest {
    StreamPtr stream = {};
    std::string peer = {};
    bool is_order = false;
    std::shared_ptr<Session> session = {};
    std::shared_ptr<std::atomic<bool>> ended = {};
    TimePoint since = {};
    TimePoint asked = {};
  };

  // --- The stream server's thread owns everything below but what is said otherwise.

  void Open(const StreamPtr& stream) {
    if (stream->member().role == stream::Role::kObserver) {
      stream->Close(
          {Code::kPermission,
           "the client has an observer's token, which may not measure; give the client the job's token"});
    } else if (clients_.size() >= kMostClients) {
      stream->Close(Error(Code::kExhausted, "the host serves ", kMostClients, " others; try again later"));
    } else {
      clients_[stream.get()];
    }
  }

  void Close(const StreamPtr& stream) {
    clients_.erase(stream.get());
    if (test_ && test_->stream == stream) EndTest();
  }

  void Take(const StreamPtr& stream, const std::string& body) {
    const auto client = clients_.find(stream.get());
    if (client == clients_.end()) return;
    const auto request = DecodeRequest(body);
    if (!request.ok() || client->second.waits) {
      stream->Close(
          request.ok()
              ? Status(
                    Code::kProtocol,
                    "the client asked before it had its last answer; use the same weightcast on both hosts")
              : request.status());
      return;
    }
    if (std::holds_alternative<AskTime>(*request)) {
      Send(stream, Reply(Time{UnixNow()}));
    } else if (const auto* hello = std::get_if<AskHello>(&*request)) {
      client->second.waits = true;
      describer_.Run([this, stream, address = hello->peer] {
        auto report = DescribeHost(address, options_.settings);
        streams_->Post([this, stream, report] { Finish(stream, Reply(Hello{report})); });
      });
    } else if (const auto* piece = std::get_if<AskPiece>(&*request)) {
      const std::string& report = client->second.report;
      Send(stream,
           Reply(ReportPiece{report.substr(std::min<size_t>(piece->from, report.size()), kPieceBytes)}));
    } else {
      TakeForTest(stream, *request);
    }
  }

  void TakeForTest(const StreamPtr& stream, const Request& request) {
    const bool begins =
        std::holds_alternative<AskBegin>(request) || std::holds_alternative<AskOrder>(request);
    const bool mine = test_ && test_->stream == stream;
    if (begins && !mine) DropOverdue();
    if (begins && !test_) {
      BeginTest(stream, std::holds_alternative<AskOrder>(request));
    } else if (begins) {
      Send(stream, Error(Code::kExhausted, "it is busy with a test with ", test_->peer,
                         " and takes one at a time; try again when that is over"));
      return;
    } else if (!mine) {
      Send(stream,
           Status(Code::kProtocol,
                  "the client asked before it had begun a test; use the same weightcast on both hosts"));
      return;
    }
    if (std::holds_alternative<AskEnd>(request)) {
      EndTest();
      Send(stream, Reply(Done{}));
      return;
    }
    test_->asked = Clock::now();
    clients_[stream.get()].waits = true;
    worker_.Run([this, stream, request, session = test_->session] {
      auto reply = session->Answer(request);
      streams_->Post([this, stream, reply] { Finish(stream, reply); });
    });
  }

  void BeginTest(const StreamPtr& stream, bool is_order) {
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    WC_LOG(kInfo, "a test with ", HostOf(stream->peer()), " begins");
    test_ = RunningTest{.stream = stream,
                        .peer = HostOf(stream->peer()),
                        .is_order = is_order,
                        .ended = ended,
                        .since = Clock::now(),
                        .asked = Clock::now()};
    test_->session = std::make_shared<Session>(
        Session::Options{.settings = options_.settings,
                         .master = options_.master,
                         .peer = test_->peer,
                         .interrupted = [this, ended] { return ended->load() || stopped_.load(); }});
  }

  /// The place is free at once; what the old test still does ends on the worker's thread before the next.
  void EndTest() {
    *test_->ended = true;
    const bool is_order = test_->is_order;  // Its report is still to be fetched.
    worker_.Run([session = std::move(test_->session)]() mutable { session.reset(); });
    test_.reset();
    if (options_.on_over && !is_order) options_.on_over();
  }

  void DropOverdue() {
    if (!test_) return;
    const TimePoint now = Clock::now();
    const bool idle = !clients_[test_->stream.get()].waits && now - test_->asked > kIdle;
    if (!idle && now - test_->since < kLongest) return;
    test_->stream->Close(Error(Code::kTimedOut, "this test ", idle ? "sent nothing for " : "has run for ",
                               idle ? kIdle.count() : std::chrono::seconds(kLongest).count(),
                               " s or longer, and another host waits; run the test again"));
    EndTest();
  }

  /// A question that took time has its answer.
  void Finish(const StreamPtr& stream, const Result<Reply>& reply) {
    const auto client = clients_.find(stream.get());
    if (client == clients_.end()) return;
    client->second.waits = false;
    if (test_ && test_->stream == stream && test_->is_order) {
      client->second.report = test_->session->report();
      EndTest();
    }
    Send(stream, reply);
  }

  static void Send(const StreamPtr& stream, const Result<Reply>& reply) { (void)stream->Send(Encode(reply)); }

  const Options options_;
  std::atomic<bool> stopped_{false};
  std::unique_ptr<stream::StreamServer> streams_;
  std::map<const stream::ServerStream*, Client> clients_;
  std::optional<RunningTest> test_;
  // Last: their threads end first. They use all of the above.
  TaskThread describer_{"wc-describe"};
  TaskThread worker_{"wc-test"};
};

}  // namespace

Result<std::unique_ptr<TestServer>> TestServer::Start(Options options) {
  auto server = std::make_unique<Server>(std::move(options));
  WC_RETURN_IF_ERROR(server->Begin());
  return std::unique_ptr<TestServer>(std::move(server));
}

}  // namespace weightcast::peertest
