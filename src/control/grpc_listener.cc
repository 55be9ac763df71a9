#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/acceptor.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"
#include "control/grpc_common.h"
#include "control/listener.h"
#include "control/opening.h"
#include "control/token.h"
#include "protocol/codec.h"
#include "protocol/limits.h"
#include "wire/control.grpc.pb.h"

namespace weightcast::control {
namespace {

namespace pb = wire::pb;

constexpr auto kShutdown = std::chrono::milliseconds(200);
constexpr std::string_view kBearer = "Bearer ";
constexpr std::string_view kWatchPath = "/weightcast.wire.pb.Control/Watch";
constexpr std::string_view kWrongToken =
    "the job token differs from the controller's; give both the same WEIGHTCAST_TOKEN or token_file";
/// A quarter of the descriptors: who only watches gets none of them.
constexpr size_t kKeptForWorkers = 4;
/// From a connection to its first request, which a worker sends at once.
constexpr auto kPatience = std::chrono::seconds(5);

bool HasToken(std::string_view authorization, const std::string& token) {
  return authorization.starts_with(kBearer) && SameToken(authorization.substr(kBearer.size()), token);
}

grpc::StatusCode GrpcCode(Code code) {
  switch (code) {
    case Code::kOk:
      return grpc::StatusCode::OK;
    case Code::kPermission:
      return grpc::StatusCode::UNAUTHENTICATED;
    case Code::kProtocol:
    case Code::kCorrupt:
      return grpc::StatusCode::INVALID_ARGUMENT;
    default:
      return grpc::StatusCode::UNAVAILABLE;
  }
}

/// The handlers, until the listener stops.
class Gate {
 public:
  explicit Gate(ListenerHandlers handlers) : handlers_(std::move(handlers)) {}
  template <typename Call>
  void Run(Call call) {
    const std::lock_guard lock(mutex_);
    if (open_) call(handlers_);
  }
  void Shut() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }

 private:
  std::mutex mutex_;
  bool open_ = true;
  const ListenerHandlers handlers_;
};

/// Owns itself until gRPC is done with it. No handler is called under the mutex.
class StreamReactor final : public grpc::ServerBidiReactor<pb::Envelope, pb::Envelope>,
                            public WorkerStream,
                            public std::enable_shared_from_this<StreamReactor> {
 public:
  StreamReactor(std::shared_ptr<Gate> gate, grpc::CallbackServerContext* context)
      : gate_(std::move(gate)), context_(context) {}

  void Begin() {
    self_ = shared_from_this();
    gate_->Run([&](const ListenerHandlers& handlers) { handlers.on_open(self_); });
    Continue();
  }

  void Bind(std::shared_ptr<SessionLink> link) override {
    const std::lock_guard lock(mutex_);
    link_ = std::move(link);
    Write();
  }
  void Kick() override {
    const std::lock_guard lock(mutex_);
    Write();
  }
  void Continue() override {
    const std::lock_guard lock(mutex_);
    if (!finished_) StartRead(&in_);
  }
  void CloseWhenIdle(const Status& reason) override {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    outcome_ = grpc::Status(GrpcCode(reason.code()), reason.message());
    Write();
  }
  void Abort() override {
    const std::lock_guard lock(mutex_);
    if (!finished_) context_->TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Close({Code::kUnavailable, "the stream ended"});
    const Status status = OrOutOfMemory("a worker's message", [this] { return Take(); });
    if (!status.ok()) Close(status);
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    closing_ = closing_ || !ok;
    if (!ok) link_.reset();
    Write();
  }
  void OnCancel() override { Close({Code::kUnavailable, "the stream broke"}); }
  void OnDone() override {
    Report({Code::kUnavailable, "the stream ended"});
    self_.reset();
  }

 private:
  /// What a read has brought.
  Status Take() {
    WC_ASSIGN_OR_RETURN(auto parcel,
                        assembler_.Add(static_cast<uint32_t>(in_.kind()), std::move(*in_.mutable_body())));
    if (!parcel) {
      Continue();
      return Status::Ok();
    }
    WC_ASSIGN_OR_RETURN(const std::string encoded, Unpack(std::move(*parcel)));
    WC_ASSIGN_OR_RETURN(auto message, protocol::DecodeWorkerMessage(encoded));
    Incoming incoming{.number = in_.number(),
                      .acknowledged = in_.acknowledged(),
                      .session = in_.session(),
                      .message = std::move(message)};
    gate_->Run([&](const ListenerHandlers& handlers) {
      handlers.on_message(shared_from_this(), std::move(incoming));
    });
    return Status::Ok();
  }

  void Close(const Status& reason) {
    {
      const std::lock_guard lock(mutex_);
      if (!closing_) outcome_ = grpc::Status(GrpcCode(reason.code()), reason.message());
      closing_ = true;
      link_.reset();
      Write();
    }
    Report(reason);
  }

  void Report(const Status& reason) {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(reported_, true)) return;
    }
    gate_->Run([&](const ListenerHandlers& handlers) { handlers.on_closed(shared_from_this(), reason); });
  }

  /// Starts the next write, or finishes. Under the mutex; gRPC runs no callback from within.
  void Write() {
    if (writing_ || finished_) return;
    const auto next = link_ == nullptr ? std::nullopt : link_->Next();
    if (next) {
      out_.set_number(next->number);
      out_.set_acknowledged(next->acknowledged);
      out_.set_session(next->session);
      out_.set_kind(static_cast<pb::Envelope::Kind>(next->kind));
      out_.set_body(next->packet->parts[next->part]);
      writing_ = true;
      StartWrite(&out_);
    } else if (closing_) {
      finished_ = true;
      Finish(outcome_);
    }
  }

  const std::shared_ptr<Gate> gate_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<StreamReactor> self_;
  pb::Envelope in_;      ///< Of the read that is under way.
  Assembler assembler_;  ///< Of OnReadDone alone.

  std::mutex mutex_;
  pb::Envelope out_;
  std::shared_ptr<SessionLink> link_;
  grpc::Status outcome_;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
  bool reported_ = false;
};

class WatchReactor final : public grpc::ServerWriteReactor<pb::Envelope>,
                           public ViewSink,
                           public std::enable_shared_from_this<WatchReactor> {
 public:
  explicit WatchReactor(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  void Begin() {
    self_ = shared_from_this();
    gate_->Run([&](const ListenerHandlers& handlers) { handlers.on_watch(self_); });
  }
  void Show(std::shared_ptr<const std::string> encoded_view) override {
    const std::lock_guard lock(mutex_);
    next_ = std::move(encoded_view);
    Write();
  }
  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    closing_ = closing_ || !ok;
    Write();
  }
  void OnCancel() override {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    Write();
  }
  void OnDone() override {
    gate_->Run([&](const ListenerHandlers& handlers) { handlers.on_unwatch(shared_from_this()); });
    self_.reset();
  }

 private:
  void Write() {
    if (writing_ || finished_) return;
    if (closing_) {
      finished_ = true;
      Finish(grpc::Status::OK);
    } else if (next_ != nullptr) {
      out_.set_body(*std::exchange(next_, nullptr));
      writing_ = true;
      StartWrite(&out_);
    }
  }

  const std::shared_ptr<Gate> gate_;
  std::shared_ptr<WatchReactor> self_;
  std::mutex mutex_;
  pb::Envelope out_;
  std::shared_ptr<const std::string> next_;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
};

/// Refuses at once.
template <typename Base>
class RefusingReactor final : public Base {
 public:
  /// The connection's first request had the token, but not this one.
  RefusingReactor() : RefusingReactor(grpc::StatusCode::UNAUTHENTICATED, std::string(kWrongToken)) {}
  RefusingReactor(grpc::StatusCode code, const std::string& reason) {
    this->Finish(grpc::Status(code, reason));
  }
  void OnDone() override { delete this; }
};

class Service final : public pb::Control::CallbackService {
 public:
  Service(std::shared_ptr<Gate> gate, std::string token) : gate_(std::move(gate)), token_(std::move(token)) {}

  grpc::ServerBidiReactor<pb::Envelope, pb::Envelope>* Attach(grpc::CallbackServerContext* context) override {
    if (!Knows(*context)) return new RefusingReactor<grpc::ServerBidiReactor<pb::Envelope, pb::Envelope>>;
    const auto reactor = std::make_shared<StreamReactor>(gate_, context);
    reactor->Begin();
    return reactor.get();
  }
  grpc::ServerWriteReactor<pb::Envelope>* Watch(grpc::CallbackServerContext* context,
                                                const pb::WatchRequest* request) override {
    using Refusing = RefusingReactor<grpc::ServerWriteReactor<pb::Envelope>>;
    if (!Knows(*context)) return new Refusing;
    if (const Status version = protocol::CheckProtocol(request->protocol()); !version.ok())
      return new Refusing(grpc::StatusCode::FAILED_PRECONDITION, version.message());
    const auto reactor = std::make_shared<WatchReactor>(gate_);
    reactor->Begin();
    return reactor.get();
  }

 private:
  [[nodiscard]] bool Knows(const grpc::CallbackServerContext& context) const {
    const auto entry = context.client_metadata().find("authorization");
    if (entry == context.client_metadata().end()) return false;
    return HasToken({entry->second.data(), entry->second.size()}, token_);
  }

  const std::shared_ptr<Gate> gate_;
  const std::string token_;
};

class GrpcListener final : public Listener {
 public:
  explicit GrpcListener(ListenerOptions options)
      : options_(std::move(options)),
        gate_(std::make_shared<Gate>(std::move(options_.handlers))),
        service_(gate_, options_.token) {}
  ~GrpcListener() override { Stop(); }

  Status Begin() {
    TakeGrpcLog();
    WC_ASSIGN_OR_RETURN(auto listeners, Listen());
    grpc::ServerBuilder builder;  // Without a port: it gets the connections that the acceptor lets through.
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(static_cast<int>(protocol::kMaxEnvelopeBytes));
    builder.SetMaxSendMessageSize(-1);  // Views may be large; all else is in pieces.
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
    builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, KeepaliveMilliseconds(options_.lease));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KeepaliveTimeoutMilliseconds(options_.lease));
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 50);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return {Code::kInternal, "gRPC cannot start a server"};
    WC_ASSIGN_OR_RETURN(acceptor_,
                        Acceptor::Start({.thread_name = "wc-accept",
                                         .listeners = std::move(listeners),
                                         .patience = kPatience,
                                         .look = [this](const auto& opening) { return Look(opening); },
                                         .take = [this](UniqueFd fd) { Take(std::move(fd)); }}));
    return Status::Ok();
  }
  [[nodiscard]] uint16_t port() const override { return port_; }
  void Stop() override {
    acceptor_.reset();
    gate_->Shut();
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + kShutdown);
    server_->Wait();
    server_.reset();
  }

 private:
  /// At every address of the name that this host has, all with one port.
  Result<std::vector<UniqueFd>> Listen() {
    WC_ASSIGN_OR_RETURN(const auto addresses, Resolve(options_.host, options_.port));
    std::vector<UniqueFd> listeners;
    std::vector<SocketAddress> tried;
    Status failure;
    port_ = options_.port;
    for (SocketAddress address : addresses) {
      if (address.IsWildcard()) address = AnyAddress();
      if (std::find(tried.begin(), tried.end(), address) != tried.end()) continue;
      tried.push_back(address);
      auto listener = weightcast::Listen(address, PortRange{port_, port_});
      if (!listener.ok() && listener.status().code() != Code::kInvalidArgument)
        return Status(listener.status().code(),
                      StrCat("the controller cannot listen: ", listener.status().message()));
      if (!listener.ok()) {
        failure = listener.status();
        continue;
      }
      WC_ASSIGN_OR_RETURN(const SocketAddress local, LocalAddressOf(listener->get()));
      port_ = local.port();
      listeners.push_back(std::move(*listener));
    }
    if (listeners.empty())
      return Status(failure.code(), StrCat("the controller cannot listen: ", failure.message()));
    return listeners;
  }

  /// gRPC sees only connections whose first request has the job token: no byte of anybody else.
  Acceptor::Answer Look(const Acceptor::Opening& opening) const {
    using Then = Acceptor::Answer::Then;
    const auto first = ReadFirstRequest(opening.bytes);
    if (!first.ok()) return {.then = Then::kEnd};
    if (!*first) {
      const bool greeted = opening.before >= kClientPreface.size();
      const bool greet = !greeted && opening.bytes.size() >= kClientPreface.size();
      return {.then = Then::kWait, .send = greet ? EmptySettings() : ""};
    }
    if (!HasToken((*first)->authorization, options_.token)) {
      const auto peer = PeerAddressOf(opening.fd);
      WC_LOG_LIMITED(kWarning, "refused a process at ", peer.ok() ? peer->ToString() : "?",
                     ": its job token is wrong");
      return {.then = Then::kEnd,
              .send = RefusalOf((*first)->stream, grpc::StatusCode::UNAUTHENTICATED, kWrongToken)};
    }
    const size_t limit = DescriptorLimit();
    // The last are for workers.
    if ((*first)->path == kWatchPath && static_cast<size_t>(opening.fd) >= limit - limit / kKeptForWorkers)
      return {.then = Then::kEnd,
              .send = RefusalOf((*first)->stream, grpc::StatusCode::RESOURCE_EXHAUSTED,
                                "too many watch it already; raise its limit of open files, ulimit -n")};
    return {.then = Then::kTake};
  }

  void Take(UniqueFd fd) {
    TuneTcp(fd.get(), std::chrono::milliseconds(KeepaliveTimeoutMilliseconds(options_.lease)));
    grpc::AddInsecureChannelFromFd(server_.get(), fd.release());
  }

  ListenerOptions options_;
  const std::shared_ptr<Gate> gate_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
  uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Start(ListenerOptions options) {
  auto listener = std::make_unique<GrpcListener>(std::move(options));
  WC_RETURN_IF_ERROR(listener->Begin());
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace weightcast::control
