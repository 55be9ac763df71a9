#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/process.h"
#include "base/strings.h"
#include "base/task_thread.h"
#include "control/envelope.h"
#include "control/listener.h"
#include "protocol/codec.h"
#include "stream/server.h"

namespace weightcast::control {
namespace {

using stream::ServerStream;
using stream::StreamServer;
using ServerStreamPtr = std::shared_ptr<ServerStream>;

/// Sends from a source, as fast as the other side reads. Thread safe.
class Outlet : public std::enable_shared_from_this<Outlet> {
 public:
  Outlet(std::weak_ptr<StreamServer> server, ServerStreamPtr stream)
      : stream_(std::move(stream)), server_(std::move(server)) {}
  virtual ~Outlet() = default;

  /// The source has something new.
  void Wake() {
    if (awake_.exchange(true)) return;
    Post([self = shared_from_this()] {
      self->awake_ = false;
      self->Pump();
    });
  }
  /// On the server's thread.
  void Pump() {
    while (stream_->queued() < stream::kLowWater) {
      const auto body = NextBody();
      if (!body || !stream_->Send(*body).ok()) return;  // on_closed tells why.
    }
  }

 protected:
  /// Runs it on the server's thread, unless that has ended.
  void Post(std::function<void()> task) {
    if (const auto server = server_.lock()) server->Post(std::move(task));
  }
  void Listen() {
    Post([stream = stream_] { stream->Resume(); });
  }
  /// nullopt: there is none at present. On the server's thread.
  virtual std::optional<std::string> NextBody() = 0;

  const ServerStreamPtr stream_;

 private:
  /// Not the owner: tasks that wait in the server keep this.
  const std::weak_ptr<StreamServer> server_;
  std::atomic<bool> awake_{false};
};

class AcceptedWorker final : public Outlet, public WorkerStream {
 public:
  using Outlet::Outlet;
  [[nodiscard]] const stream::Member& member() const override { return stream_->member(); }
  void Bind(std::shared_ptr<SessionLink> link) override {
    {
      const std::lock_guard lock(mutex_);  // After this nothing more is taken from the link before.
      link_ = std::move(link);
    }
    Wake();
  }
  void Kick() override { Wake(); }
  void Continue() override { Listen(); }
  void CloseWhenIdle(const Status& reason) override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = reason;
    }
    Wake();
  }
  void Abort() override {
    Post([stream = stream_] {
      stream->Abort({Code::kUnavailable, "the controller has ended the stream; see its log"});
    });
  }

  Assembler assembler;  ///< The server thread's.

 private:
  std::optional<std::string> NextBody() override {
    const std::lock_guard lock(mutex_);
    if (const auto next = link_ == nullptr ? std::nullopt : link_->Next()) return Enclose(*next);
    if (closing_) stream_->Close(*closing_);
    return std::nullopt;
  }
  std::mutex mutex_;
  std::shared_ptr<SessionLink> link_;
  std::optional<Status> closing_;
};

class Observer final : public Outlet, public ViewSink {
 public:
  using Outlet::Outlet;
  void Show(SharedPacket view) override {
    {
      const std::lock_guard lock(mutex_);
      next_ = std::move(view);
    }
    Wake();
  }
  void Continue() override { Listen(); }

 private:
  std::optional<std::string> NextBody() override {
    if (view_ == nullptr || part_ == view_->parts.size()) {
      const std::lock_guard lock(mutex_);
      if (next_ == nullptr) return std::nullopt;
      view_ = std::exchange(next_, nullptr);
      part_ = 0;
    }
    const Envelope envelope{.kind = view_->kind(part_)};
    return Enclose(envelope, view_->parts[part_++]);
  }
  SharedPacket view_;  ///< Goes out.
  size_t part_ = 0;
  std::mutex mutex_;
  SharedPacket next_;
};

size_t MostStreams() {
  const size_t limit = DescriptorLimit();
  return limit - limit / 4;
}

class StreamListener final : public Listener {
 public:
  explicit StreamListener(ListenerOptions options)
      : options_(std::move(options)),
        most_(options_.most_streams != 0 ? options_.most_streams : MostStreams()) {}
  ~StreamListener() override { Stop(); }

  Status Begin() {
    // The handlers may run before Start has returned.
    const std::lock_guard lock(starting_);
    auto server = StreamServer::Start(
        {.host = options_.host,
         .port = options_.port,
         .version = protocol::kProtocolVersion,
         .master = options_.master,
         .lease = options_.lease,
         .handlers = {
             .on_open = [this](const auto& stream) { Open(stream); },
             .on_message = [this](const auto& stream, std::string body) { OnFrame(stream, std::move(body)); },
             .on_room = [this](const auto& stream) { Pump(stream.get()); },
             .on_closed = [this](const auto& stream,
                                 const Status& reason) { Close(stream.get(), reason); }}});
    if (!server.ok())
      return Error(server.status().code(), "the controller cannot listen: ", server.status().message());
    server_ = std::move(*server);
    return Status::Ok();
  }
  [[nodiscard]] uint16_t port() const override { return server_->port(); }
  void Stop() override {
    if (server_ != nullptr) server_->Stop();
    stop_ = true;
    unpacker_.reset();
  }

 private:
  void Open(const ServerStreamPtr& stream) {
    std::weak_ptr<StreamServer> server;
    {
      const std::lock_guard lock(starting_);
      server = server_;
    }
    const size_t open = workers_.size() + observers_.size();
    const bool watches = stream->member().role == stream::Role::kObserver;
    if (open >= (watches ? most_ - most_ / 4 : most_))
      return Refuse(stream, watches, open);  // The last are for workers.
    if (watches) {
      const auto one = std::make_shared<Observer>(std::move(server), stream);
      observers_.emplace(stream.get(), one);
      return options_.handlers.on_watch(one);
    }
    const auto one = std::make_shared<AcceptedWorker>(std::move(server), stream);
    workers_.emplace(stream.get(), one);
    options_.handlers.on_open(one);
  }

  void Refuse(const ServerStreamPtr& stream, bool watches, size_t open) const {
    const Status reason =
        Error(Code::kExhausted, "this controller has ", open, " streams already, too many for another ",
              watches ? "observer" : "worker", "; raise its limit of open files (ulimit -n)");
    WC_LOG_LIMITED(kWarning, "refused a process at ", stream->peer(), ": ", reason.message());
    stream->Close(reason);
  }

  void OnFrame(const ServerStreamPtr& stream, std::string body) {
    if (const auto at = observers_.find(stream.get()); at != observers_.end()) {
      const Status status = OrOutOfMemory("the controller", "an observer's question",
                                          [&] { return Ask(at->second, stream, std::move(body)); });
      if (!status.ok()) CloseForProtocolError(stream, status);
      return;
    }
    const auto at = workers_.find(stream.get());
    if (at == workers_.end()) return;  // Refused.
    const std::shared_ptr<AcceptedWorker> worker = at->second;
    const Status status = OrOutOfMemory("the controller", "a worker's message",
                                        [&] { return Take(worker, stream, std::move(body)); });
    if (!status.ok()) CloseForProtocolError(stream, status);
  }

  /// What an observer asks has no number and is never cut.
  Status Ask(const std::shared_ptr<Observer>& observer, const ServerStreamPtr& stream,
             std::string body) const {
    WC_ASSIGN_OR_RETURN(const Opened opened, OpenEnvelope(std::move(body)));
    if (opened.envelope != Envelope{})
      return Error(Code::kProtocol,
                   "an observer's question must be one message without a number, not number ",
                   opened.envelope.number, " of kind ", static_cast<int>(opened.envelope.kind),
                   "; use the same weightcast on all hosts");
    WC_ASSIGN_OR_RETURN(auto question, protocol::DecodeObserverMessage(opened.part));
    stream->Pause();
    options_.handlers.on_ask(observer, std::move(question));
    return Status::Ok();
  }

  /// A large message is read on another thread: meanwhile others are heard here.
  Status Take(const std::shared_ptr<AcceptedWorker>& worker, const ServerStreamPtr& stream,
              std::string body) {
    WC_ASSIGN_OR_RETURN(Opened opened, OpenEnvelope(std::move(body)));
    WC_ASSIGN_OR_RETURN(auto whole, worker->assembler.Add(opened.envelope.kind, std::move(opened.part)));
    if (!whole) return Status::Ok();
    stream->Pause();
    if (!whole->pieces) return Dispatch(worker, opened.envelope, std::move(*whole));
    auto shared = std::make_shared<EncodedMessage>(std::move(*whole));
    unpacker_->Run([this, worker, stream, shared, envelope = opened.envelope] {
      if (stop_) return;
      const Status status = OrOutOfMemory("the controller", "a worker's message",
                                          [&] { return Dispatch(worker, envelope, std::move(*shared)); });
      if (!status.ok()) server_->Post([this, stream, status] { CloseForProtocolError(stream, status); });
    });
    return Status::Ok();
  }

  Status Dispatch(const std::shared_ptr<AcceptedWorker>& worker, const Envelope& envelope,
                  EncodedMessage whole) const {
    WC_ASSIGN_OR_RETURN(const std::string encoded, Unpack(std::move(whole)));
    WC_ASSIGN_OR_RETURN(auto message, protocol::DecodeWorkerMessage(encoded));
    options_.handlers.on_message(worker, {.number = envelope.number,
                                          .acknowledged = envelope.acknowledged,
                                          .session = envelope.session,
                                          .bytes = encoded.size(),
                                          .message = std::move(message),
                                          .arrived = Clock::now()});
    return Status::Ok();
  }

  /// Ends a stream that breaks the protocol, and tells its worker why.
  void CloseForProtocolError(const ServerStreamPtr& stream, const Status& reason) {
    stream->Close(reason);
    Close(stream.get(), reason);
  }

  void Pump(const ServerStream* stream) {
    if (const auto at = workers_.find(stream); at != workers_.end()) at->second->Pump();
    if (const auto at = observers_.find(stream); at != observers_.end()) at->second->Pump();
  }

  /// Also of streams that are forgotten already, or were refused.
  void Close(const ServerStream* stream, const Status& reason) {
    if (const auto worker = workers_.extract(stream)) options_.handlers.on_closed(worker.mapped(), reason);
    if (const auto observer = observers_.extract(stream)) options_.handlers.on_unwatch(observer.mapped());
  }

  const ListenerOptions options_;
  const size_t most_;
  // The server thread's:
  std::unordered_map<const ServerStream*, std::shared_ptr<AcceptedWorker>> workers_;
  std::unordered_map<const ServerStream*, std::shared_ptr<Observer>> observers_;

  std::atomic<bool> stop_{false};
  std::unique_ptr<TaskThread> unpacker_ = std::make_unique<TaskThread>("wc-unpack");
  std::mutex starting_;
  std::shared_ptr<StreamServer> server_;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::Start(ListenerOptions options) {
  auto listener = std::make_unique<StreamListener>(std::move(options));
  WC_RETURN_IF_ERROR(listener->Begin());
  return std::unique_ptr<Listener>(std::move(listener));
}

}  // namespace weightcast::control
