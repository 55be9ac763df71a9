#include "control/client.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "base/advice.h"
#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/socket.h"
#include "base/strings.h"
#include "base/thread.h"
#include "control/controller_search.h"
#include "control/controller_stream.h"
#include "control/link_reporter.h"
#include "control/send_filter.h"
#include "control/session_link.h"
#include "control/token.h"
#include "protocol/codec.h"

namespace weightcast::control {
namespace {

/// Errors: kExhausted, there is no memory for it; those of Unpack and DecodeControllerMessage.
Result<protocol::ControllerMessage> Decode(const ClientOptions& reader, EncodedMessage encoded) {
  auto message = OrOutOfMemory(protocol::ToString(reader.hello.name), "a message of the controller",
                               [&]() -> Result<protocol::ControllerMessage> {
                                 WC_ASSIGN_OR_RETURN(const std::string bytes, Unpack(std::move(encoded)));
                                 return protocol::DecodeControllerMessage(bytes);
                               });
  if (message.ok()) return message;
  return BrokeProtocol(StrCat("the controller at ", reader.settings.controller), message.status());
}

Status WrongNumber(const std::string& controller) {
  return BrokeProtocol(StrCat("the controller at ", controller),
                       {Code::kProtocol, "the numbers of its messages are out of order"});
}

class Client final : public ControlClient {
 public:
  Client(ClientOptions options, Token token, std::unique_ptr<ControllerStream> stream)
      : options_(std::move(options)),
        settings_(options_.settings),
        closed_(ClosedHere(protocol::ToString(options_.hello.name))),
        search_(options_, std::move(token), Clock::now()),
        lease_(settings_.lease),
        heartbeat_(*MakePacket(protocol::WorkerMessage(protocol::Heartbeat{}))),
        link_(std::make_shared<SessionLink>()),
        sends_(link_, settings_.controller),
        stream_(std::move(stream)),
        reporter_(options_.on_state) {}
  Status Begin() {
    WC_ASSIGN_OR_RETURN(thread_, StartThread("wc-control", [this] { Run(); }));
    return Status::Ok();
  }

  ~Client() override {
    reporter_.Quiet();
    stop_ = true;
    stream_->Wake();
    if (thread_.joinable()) thread_.join();
  }

  void SetServed(protocol::EngineState state, Version served, Version newest) override {
    const std::lock_guard lock(mutex_);
    options_.hello.state = state;
    options_.hello.version = served;
    options_.hello.newest = newest;
  }
  void SetRun(const protocol::Run& run) override {
    const std::lock_guard lock(mutex_);
    options_.hello.run = run;
  }

  void Send(protocol::WorkerMessage message) override {
    Status sent = sends_.Push(message);
    sent.ok() ? stream_->Wake() : Fail(std::move(sent));
  }

  void Leave(TimePoint deadline) override {
    leaving_ = true;  // Before it is sent: the controller answers by ending the stream.
    Send(protocol::Leave{});
    leave_queued_ = true;
    stream_->Wake();
    reporter_.WaitEnded(deadline);
    stop_ = true;
    stream_->Wake();
  }

  [[nodiscard]] LinkState state() const override { return reporter_.state(); }
  [[nodiscard]] Status status() const override { return reporter_.status(); }

 private:
  void Run() {
    while (!ended_) {
      if (stop_) {
        End(closed_);
        break;
      }
      CheckDeadlines();
      if (ended_) break;
      Handle(stream_->Next(NextDeadline()));
    }
    stream_->Abort();
  }

  /// Ends the session, from any thread.
  void Fail(Status reason) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::move(reason);
    }
    stream_->Wake();
  }
  Status TakeFailure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, Status::Ok());
  }

  void End(const Status& reason) {
    if (ended_) return;
    ended_ = true;
    sends_.Close();
    reporter_.Report(LinkState::kEnded, reason);
  }

  [[nodiscard]] TimePoint NextDeadline() const {
    return search_.found() ? std::min(next_beat_, heard_ + lease_) : search_.next();
  }

  void CheckDeadlines() {
    const TimePoint now = Clock::now();
    if (const Status failure = TakeFailure(); !failure.ok()) return End(failure);
    if (search_.found()) {
      if (now >= heard_ + lease_) {
        Break(Error(Code::kPeerDead, "the controller at ", settings_.controller, " missed heartbeats for ",
                    Seconds(lease_), " s; check that it runs, and the network to it"));
      } else if (now >= next_beat_) {
        next_beat_ = now + beat_;
        link_->PushUrgent(heartbeat_);
        stream_->Kick();
      }
      if (leave_queued_ && link_->drained()) End(closed_);
      return;
    }
    if (leaving_) return End(closed_);
    if (const Status over = search_.CheckOver(now); !over.ok()) return End(over);
    if (now < search_.next()) return;
    if (!search_.attempting()) return Connect();
    FailAttempt(Error(Code::kTimedOut, "no answer from the controller at ", settings_.controller,
                      "; check that it runs, and its address"));
  }

  void Connect() {
    protocol::Hello hello;
    {
      const std::lock_guard lock(mutex_);
      hello = options_.hello;
    }
    hello.term = term_;
    auto packet = MakePacket(protocol::WorkerMessage(std::move(hello)));
    if (!packet.ok()) return End(packet.status());
    if (search_.ever_found() && Clock::now() >= search_.since() + lease_) {
      // No controller would go on with this session, and nothing is kept for it.
      session_ = 0;
      sends_.EndSession();
    }
    link_->Hold();
    link_->PushUrgent(std::move(*packet), session_);
    auto token = search_.BeginAttempt(Clock::now());
    Status begun = token.status();
    if (token.ok())
      begun = stream_->Connect(
          {.address = settings_.controller, .token = std::move(*token), .lease = settings_.lease}, link_);
    if (!begun.ok()) Closed(begun);
  }

  void Handle(ControllerStream::Event event) {
    switch (event.kind) {
      case ControllerStream::Event::Kind::kNone:
      case ControllerStream::Event::Kind::kWoken:
        return;
      case ControllerStream::Event::Kind::kPiece:
        heard_ = Clock::now();
        return;
      case ControllerStream::Event::Kind::kMessage:
        heard_ = Clock::now();
        HandleMessage(event);
        return;
      case ControllerStream::Event::Kind::kClosed:
        Closed(event.reason);
        return;
    }
  }

  void Closed(const Status& reason) {
    if (leaving_) return End(closed_);
    if (const Status over = search_.OnStreamEnded(reason, Clock::now()); !over.ok()) return End(over);
    search_.found() ? Break(reason) : FailAttempt(reason);
  }

  /// From connected to not.
  void Break(const Status& reason) {
    search_.OnLost(reason, Clock::now());
    reporter_.Report(LinkState::kBroken, reason);
    stream_->Abort();
  }

  /// Still not connected.
  void FailAttempt(const Status& reason) {
    stream_->Abort();
    if (search_.Fail(reason, Clock::now())) reporter_.Report(LinkState::kBroken, reason);
  }

  void HandleMessage(ControllerStream::Event& event) {
    if (event.number == 0) return HandleUnnumbered(event);
    if (!search_.found()) return;  // It comes after the welcome, or is nonsense.
    bool duplicate = false;
    if (!link_->Acknowledge(event.acknowledged) || !link_->Receive(event.number, duplicate)) {
      session_ = 0;
      return Break(WrongNumber(settings_.controller));
    }
    if (!duplicate) DeliverMessage(std::move(event.message));
  }

  /// Welcome, Refused and Heartbeat: small, and this thread's to understand.
  void HandleUnnumbered(ControllerStream::Event& event) {
    auto message = Decode(options_, event.message);
    if (!message.ok()) {
      if (search_.found() || !search_.ever_found()) return End(message.status());
      return FailAttempt(message.status());  // The process that has the port meanwhile may be no controller.
    }
    if (const auto* welcome = std::get_if<protocol::Welcome>(&*message)) {
      Welcome(*welcome, event);
    } else if (const auto* refused = std::get_if<protocol::Refused>(&*message)) {
      DeliverMessage(std::move(event.message));
      End(refused->reason);
    } else if (search_.found() && !link_->Acknowledge(event.acknowledged)) {
      End(WrongNumber(settings_.controller));
    }
  }

  void Welcome(const protocol::Welcome& welcome, ControllerStream::Event& event) {
    if (search_.found()) return;
    if (welcome.term < term_) {
      const Status older =
          Error(Code::kUnavailable, "the controller at ", settings_.controller, " is older (term ",
                welcome.term.number, ") than one that this worker has followed (term ", term_.number,
                "); end the older controller");
      // What was told before was why the newer one is gone; that it found this one is reported once.
      if (search_.reason() != older) reporter_.Report(LinkState::kBroken, older);
      return FailAttempt(older);
    }
    const bool resumed = session_ != 0 && event.session == session_ && welcome.term == term_;
    if (!resumed) {
      sends_.BeginSession();
    } else if (!link_->Rewind(event.acknowledged)) {
      session_ = 0;  // Next time from the beginning.
      return FailAttempt(search_.reason());
    }
    term_ = welcome.term;
    session_ = event.session;
    AdoptLease(welcome.lease_seconds);
    search_.OnFound(Clock::now());
    next_beat_ = Clock::now() + beat_;
    if (!resumed) DeliverMessage(std::move(event.message));
    reporter_.Report(LinkState::kConnected, Status::Ok());
    stream_->Kick();
  }

  void AdoptLease(double seconds) {
    const Duration lease = FromSeconds(std::clamp(seconds, 0.001, 1e6));
    if (lease != settings_.lease && !warned_) {
      warned_ = true;
      WC_LOG(kWarning, "the controller's lease is ", seconds, " s, this worker's ", Seconds(settings_.lease),
             " s; set WEIGHTCAST_LEASE to the same everywhere");
    }
    lease_ = lease;
    beat_ = std::min(lease_, settings_.lease) / 4;
  }

  void DeliverMessage(EncodedMessage encoded) {
    auto shared = std::make_shared<EncodedMessage>(std::move(encoded));
    reporter_.Run([this, shared] {
      auto message = Decode(options_, std::move(*shared));
      if (message.ok()) return options_.on_message(std::move(*message));
      Fail(message.status());
    });
  }

  ClientOptions options_;  ///< hello: under the mutex, but for the name.
  const Settings settings_;
  const Status closed_;  ///< The reason of an end that this process has asked for.

  // The thread's.
  ControllerSearch search_;
  bool ended_ = false;
  bool warned_ = false;
  Duration lease_;   ///< The controller's, once known.
  Duration beat_{};  ///< From one heartbeat to the next, once welcomed.
  protocol::Term term_;
  uint64_t session_ = 0;
  TimePoint heard_;
  TimePoint next_beat_;
  const SharedPacket heartbeat_;

  const std::shared_ptr<SessionLink> link_;
  SendFilter sends_;
  const std::unique_ptr<ControllerStream> stream_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> leave_queued_{false};

  mutable std::mutex mutex_;
  Status failure_;

  std::thread thread_;
  LinkReporter reporter_;  ///< Runs the caller's code. Last: its callbacks use the others.
};

}  // namespace

Result<std::unique_ptr<ControlClient>> ControlClient::Start(ClientOptions options) {
  WC_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.settings.controller));
  if (address.port == 0)
    return Error(Code::kInvalidArgument, "setting controller is '", options.settings.controller,
                 "', which has no port; write HOST:PORT");
  WC_ASSIGN_OR_RETURN(Token token, LoadToken(options.settings));
  WC_RETURN_IF_ERROR(token.ForWorker(MemberOf(options.hello.name)).status());
  WC_ASSIGN_OR_RETURN(auto stream, ControllerStream::Create());
  options.hello.job = options.settings.job;
  if (options.absence == nullptr) options.absence = std::make_shared<Absence>();
  auto client = std::make_unique<Client>(std::move(options), std::move(token), std::move(stream));
  WC_RETURN_IF_ERROR(client->Begin());
  return std::unique_ptr<ControlClient>(std::move(client));
}

}  // namespace weightcast::control
