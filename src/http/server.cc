#include "http/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <map>
#include <optional>
#include <thread>

#include "base/listener.h"
#include "base/log.h"
#include "base/process.h"
#include "base/strings.h"
#include "base/thread.h"

namespace weightcast::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace wire = boost::beast::http;
using Tcp = asio::ip::tcp;
using Error = boost::system::error_code;

constexpr size_t kMostAcceptedAtOnce = 64;
constexpr size_t kMostAtOnce = size_t{64} << 10;
constexpr size_t kMostDiscarded = size_t{64} << 10;
/// What the kernel may hold for a client that does not read: so much less is stale when it reads again.
constexpr int kSendBuffer = 128 << 10;
constexpr Duration kSweep = std::chrono::milliseconds(50);
constexpr Duration kRest = std::chrono::milliseconds(100);
constexpr Duration kLinger = std::chrono::seconds(1);

enum class Stage : uint8_t { kReading, kAnswering, kFeeding, kDraining };

std::string HeadOf(const Response& response, std::optional<size_t> body_bytes) {
  std::string head = StrCat("HTTP/1.1 ", response.status, " ");
  head += std::string(wire::obsolete_reason(wire::int_to_status(response.status)));
  head += StrCat("\r\nContent-Type: ", response.type,
                 "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n");
  if (body_bytes) head += StrCat("Content-Length: ", *body_bytes, "\r\n");
  for (const auto& [name, value] : response.headers) head += StrCat(name, ": ", value, "\r\n");
  return head + "\r\n";
}

/// Nullopt where the client has gone or was cut off: nobody is there to answer.
std::optional<Response> AnswerToMalformed(const Error& error) {
  if (error == wire::error::header_limit || error == wire::error::buffer_overflow)
    return PlainResponse(431, StrCat("the head of this request is too long; at most ", Server::kMostHeadBytes,
                                     " bytes are allowed"));
  if (error == wire::error::end_of_stream || error == wire::error::partial_message) return std::nullopt;
  if (error.category() == make_error_code(wire::error::bad_method).category())
    return PlainResponse(400, "this is not an HTTP request; send GET or HEAD");
  return std::nullopt;
}

Request RequestOf(const wire::request<wire::empty_body>& message) {
  const auto text = [&](wire::field field) { return std::string(message[field]); };
  const std::string target(message.target());
  const size_t mark = target.find('?');
  return {.path = target.substr(0, mark),
          .query = mark == std::string::npos ? "" : target.substr(mark + 1),
          .host = text(wire::field::host),
          .authorization = text(wire::field::authorization),
          .last_event_id = std::string(message["Last-Event-ID"])};
}

class Connection;

/// What a connection tells its server; all of it on the server's thread.
class Owner {
 public:
  virtual ~Owner() = default;
  virtual Answer AnswerTo(const Request& request) = 0;
  virtual bool MayFeed() const = 0;
  virtual const Server::Options& options() const = 0;
  virtual void Ended(uint64_t id) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Owner& owner, uint64_t id, Tcp::socket socket)
      : owner_(owner), id_(id), socket_(std::move(socket)), buffer_(Server::kMostHeadBytes + 1024) {
    parser_.emplace();
    parser_->header_limit(Server::kMostHeadBytes);
    until_ = Clock::now() + owner_.options().request;
  }

  [[nodiscard]] Stage stage() const { return stage_; }
  [[nodiscard]] TimePoint until() const { return until_; }

  void Begin() {
    wire::async_read_header(
        socket_, buffer_, *parser_,
        [self = shared_from_this()](const Error& error, size_t) { self->OnRequest(error); });
  }
  /// What a feed has to send, if nothing is under way.
  void Push(TimePoint now) {
    if (stage_ != Stage::kFeeding || writing_) return;
    again_ = TimePoint::max();
    text_ = feed_->Next(now, again_);
    if (text_ == nullptr && now >= beat_) text_ = beat_text_;
    if (text_ == nullptr) return;
    Write({}, Stage::kFeeding);
  }
  [[nodiscard]] TimePoint again() const {
    return stage_ == Stage::kFeeding && !writing_ ? std::min(again_, beat_) : TimePoint::max();
  }
  /// No handler finds anything to do afterwards. What a client has not taken is dropped: the kernel would
  /// keep it for minutes.
  void Close() {
    Error ignored;
    closed_ = true;
    if (writing_) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    socket_.close(ignored);
  }

 private:
  void OnRequest(const Error& error) {
    if (closed_) return;
    if (error) {
      if (auto response = AnswerToMalformed(error)) return Send(std::move(*response), false);
      return End();
    }
    const auto& message = parser_->get();
    const bool head = message.method() == wire::verb::head;
    if (!head && message.method() != wire::verb::get) {
      Response response = PlainResponse(405, "only GET and HEAD are allowed here");
      response.headers.emplace_back("Allow", "GET, HEAD");
      return Send(std::move(response), false);
    }
    Answer answer = owner_.AnswerTo(RequestOf(message));
    if (auto* response = std::get_if<Response>(&answer)) return Send(std::move(*response), head);
    if (!owner_.MayFeed())
      return Send(
          PlainResponse(503, "too many clients follow the events already; close one, or try again later"),
          head);
    Response opening{.type = "text/event-stream", .body = nullptr};
    if (head) return Send(std::move(opening), true);
    feed_ = std::get<std::unique_ptr<Feed>>(std::move(answer));
    head_ = HeadOf(opening, std::nullopt);
    text_ = nullptr;
    Discard();
    Write(head_, Stage::kFeeding);
  }

  void Send(Response response, bool head_only) {
    head_ = HeadOf(response, response.body == nullptr ? 0 : response.body->size());
    text_ = head_only ? nullptr : std::move(response.body);
    Write(head_, Stage::kAnswering);
  }

  /// `head` and then `text_`.
  void Write(std::string_view head, Stage stage) {
    stage_ = stage;
    writing_ = true;
    const TimePoint now = Clock::now();
    beat_ = now + owner_.options().beat;
    const std::string_view body = text_ == nullptr ? std::string_view() : std::string_view(*text_);
    const std::array<asio::const_buffer, 2> parts{asio::buffer(head.data(), head.size()),
                                                  asio::buffer(body.data(), body.size())};
    const auto more = [this](const Error& error,
                             size_t) {  // Called at each step, while `self` below is held.
      until_ = Clock::now() + owner_.options().answer;
      return error ? size_t{0} : kMostAtOnce;
    };
    asio::async_write(socket_, parts, more,
                      [self = shared_from_this()](const Error& error, size_t) { self->OnWritten(error); });
  }

  void OnWritten(const Error& error) {
    if (closed_) return;
    writing_ = false;
    text_ = nullptr;
    if (error) return End();
    if (stage_ == Stage::kFeeding) {
      until_ = TimePoint::max();
      return Push(Clock::now());
    }
    // Closed at once, what the client still sends would reset the connection under the answer.
    stage_ = Stage::kDraining;
    until_ = Clock::now() + kLinger;
    Error ignored;
    socket_.shutdown(Tcp::socket::shutdown_send, ignored);
    Discard();
  }

  /// Reads what nobody wants, to learn of the client's end.
  void Discard() {
    socket_.async_read_some(asio::buffer(discarded_),
                            [self = shared_from_this()](const Error& error, size_t got) {
                              if (self->closed_) return;
                              self->discarded_bytes_ += got;
                              if (error || self->discarded_bytes_ > kMostDiscarded) return self->End();
                              self->Discard();
                            });
  }

  void End() {
    Close();
    owner_.Ended(id_);
  }

  inline static const Text beat_text_ = std::make_shared<const std::string>(":\n\n");
  Owner& owner_;
  const uint64_t id_;
  Tcp::socket socket_;
  beast::flat_buffer buffer_;
  std::optional<wire::request_parser<wire::empty_body>> parser_;
  std::string head_;
  Text text_;
  std::unique_ptr<Feed> feed_;
  Stage stage_ = Stage::kReading;
  bool writing_ = false;
  bool closed_ = false;
  TimePoint until_;
  TimePoint again_ = TimePoint::max();
  TimePoint beat_ = TimePoint::max();
  std::array<char, 1024> discarded_{};
  size_t discarded_bytes_ = 0;
};

class BeastServer final : public Server, public Owner {
 public:
  explicit BeastServer(Options options)
      : options_(std::move(options)), listening_(context_), sweep_(context_) {
    options_.most = std::clamp<size_t>(options_.most, 1, std::max<size_t>(DescriptorLimit() / 4, 1));
    // Some connections are always left to those who ask once.
    options_.most_feeds = std::min(options_.most_feeds, options_.most * 7 / 8);
  }

  Status Begin() {
    WC_ASSIGN_OR_RETURN(UniqueFd fd, options_.place.Open());
    WC_ASSIGN_OR_RETURN(address_, LocalAddressOf(fd.get()));
    AcceptOnceHeard(fd.get());
    listener_ = Listener(std::move(fd));
    listening_.assign(listener_.get());
    WaitForConnections();
    WC_ASSIGN_OR_RETURN(thread_, StartThread(options_.thread_name, [this] { context_.run(); }));
    return Status::Ok();
  }

  ~BeastServer() override {
    if (thread_.joinable()) {
      if (::getpid() != process_) {  // A forked child has no such thread.
        thread_.detach();
      } else {
        context_.stop();
        thread_.join();
      }
    }
    if (listening_.is_open()) listening_.release();  // The listener's own.
  }

  [[nodiscard]] SocketAddress address() const override { return address_; }
  void Wake() override {
    if (waking_.exchange(true)) return;
    asio::post(context_, [this] {
      waking_ = false;
      PushAll();
    });
  }

 private:
  Answer AnswerTo(const Request& request) override { return options_.answer_to(request); }
  bool MayFeed() const override {
    const auto feeds = std::count_if(connections_.begin(), connections_.end(),
                                     [](const auto& one) { return one.second->stage() == Stage::kFeeding; });
    return static_cast<size_t>(feeds) < options_.most_feeds;
  }
  const Options& options() const override { return options_; }
  void Ended(uint64_t id) override { connections_.erase(id); }

  void WaitForConnections() {
    listening_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const Error& error) {
      if (!error) AcceptSome();
    });
  }

  void AcceptSome() {
    for (size_t i = 0; i < std::min(kMostAcceptedAtOnce, options_.most / 4 + 1); ++i) {
      auto fd = Accept(listener_.get());
      if (!fd.ok()) return OutOfDescriptors(fd.status());
      if (!fd->valid()) break;
      Hold(std::move(*fd));
    }
    WaitForConnections();
  }

  void OutOfDescriptors(const Status& why) {
    WC_LOG_LIMITED(kWarning, "thread ", options_.thread_name, " ", why.message(), "; this process may have ",
                   DescriptorLimit(), " open files");
    if (!connections_.empty()) MakeRoom();
    const auto rest = std::make_shared<asio::steady_timer>(context_, kRest);
    rest->async_wait([this, rest](const Error& error) {
      if (!error) WaitForConnections();
    });
  }

  void Hold(UniqueFd fd) {
    const int size = kSendBuffer;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    Tcp::socket socket(context_);
    Error error;
    socket.assign(address_.family() == AF_INET6 ? Tcp::v6() : Tcp::v4(), fd.get(), error);
    if (error) return;
    fd.release();
    socket.set_option(Tcp::no_delay(true), error);
    const uint64_t id = next_id_++;
    const auto connection = std::make_shared<Connection>(*this, id, std::move(socket));
    if (connections_.size() >= options_.most) MakeRoom();
    connections_.emplace(id, connection);
    connection->Begin();
    if (!sweeping_) Sweep();
  }

  /// Ends the oldest that has sent no request; else the oldest that has its answer, or is getting it.
  void MakeRoom() {
    for (const Stage stage : {Stage::kReading, Stage::kDraining, Stage::kAnswering, Stage::kFeeding}) {
      const auto at = std::find_if(connections_.begin(), connections_.end(),
                                   [&](const auto& one) { return one.second->stage() == stage; });
      if (at == connections_.end()) continue;
      at->second->Close();
      connections_.erase(at);
      return;
    }
  }

  void PushAll() {
    const TimePoint now = Clock::now();
    for (const auto& [id, connection] : connections_) connection->Push(now);
  }

  /// While there are connections: ends those that have run out of time, and moves feeds on.
  void Sweep() {
    const TimePoint now = Clock::now();
    std::erase_if(connections_, [&](const auto& one) {
      if (one.second->until() > now) return false;
      one.second->Close();
      return true;
    });
    TimePoint next = now + kSweep;
    for (const auto& [id, connection] : connections_) {
      if (connection->again() <= now) connection->Push(now);
      next = std::min(next, std::max(connection->again(), now));
    }
    sweeping_ = !connections_.empty();
    if (!sweeping_) return;
    sweep_.expires_at(next);
    sweep_.async_wait([this](const Error& error) {
      if (!error) Sweep();
    });
  }

  Options options_;
  asio::io_context context_{1};
  Listener listener_;
  asio::posix::stream_descriptor listening_;
  asio::steady_timer sweep_;
  bool sweeping_ = false;
  std::map<uint64_t, std::shared_ptr<Connection>> connections_;  ///< By age.
  uint64_t next_id_ = 0;
  std::atomic<bool> waking_{false};
  SocketAddress address_;
  const int process_ = ::getpid();
  std::thread thread_;
};

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool whole = text[i] == '%' && i + 2 < text.size();
    const auto byte = whole ? ParseHex<uint8_t>(text.substr(i + 1, 2)) : std::nullopt;
    out += byte ? static_cast<char>(*byte) : text[i];
    if (byte) i += 2;
  }
  return out;
}

}  // namespace

std::string QueryValue(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    const size_t equals = one.find('=');
    if (equals != std::string_view::npos && one.substr(0, equals) == name)
      return PercentDecoded(one.substr(equals + 1));
  }
  return {};
}

Response PlainResponse(unsigned status, std::string_view line) {
  return {.status = status, .body = std::make_shared<const std::string>(StrCat(line, "\n"))};
}

Result<std::unique_ptr<Server>> Server::Start(Options options) {
  auto server = std::make_unique<BeastServer>(std::move(options));
  WC_RETURN_IF_ERROR(server->Begin());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace weightcast::http
