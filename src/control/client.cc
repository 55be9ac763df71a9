#include "control/client.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/socket.h"
#include "base/strings.h"
#include "base/task_thread.h"
#include "base/thread.h"
#include "control/controller_stream.h"
#include "control/session_link.h"
#include "control/token.h"
#include "protocol/codec.h"

namespace weightcast::control {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kMaxBackoff = std::chrono::seconds(1);
/// A stream that is not welcomed for so long is given up for another try.
constexpr Duration kLeastAttempt = std::chrono::seconds(2);
/// Until the first reminder of a missing controller; the time until the next one doubles, up to ...
constexpr Duration kFirstReminder = std::chrono::seconds(15);
constexpr Duration kRarestReminder = std::chrono::hours(1);

class Client final : public ControlClient {
 public:
  Client(ClientOptions options, Token token, std::unique_ptr<ControllerStream> stream)
      : options_(std::move(options)),
        settings_(options_.settings),
        member_(MemberOf(options_.hello.name)),
        token_(std::move(token)),
        good_token_(token_),
        lease_(settings_.lease),
        link_(std::make_shared<SessionLink>()),
        heartbeat_(*MakePacket(protocol::WorkerMessage(protocol::Heartbeat{}))),
        stream_(std::move(stream)) {
    options_.hello.job = settings_.job;
    if (options_.absence == nullptr) options_.absence = std::make_shared<Absence>();
    Miss({Code::kUnavailable, StrCat("no answer yet from the controller at ", settings_.controller,
                                     "; check that it runs and the address")});
  }
  Status Begin() {
    WC_ASSIGN_OR_RETURN(thread_, StartThread("wc-control", [this] { Run(); }));
    return Status::Ok();
  }

  ~Client() override {
    quiet_ = true;
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
    const auto* result = std::get_if<protocol::EngineCommandResult>(&message);
    const bool registers = std::holds_alternative<protocol::Register>(message) ||
                           std::holds_alternative<protocol::Suspended>(message) ||
                           (result != nullptr && result->order == 0);
    auto packet = MakePacket(message);
    {
      const std::lock_guard lock(mutex_);
      if (state_ == LinkState::kEnded || forgotten_ || (dropping_ && !registers)) return;
      dropping_ = false;
      if (!packet.ok()) {
        failure_ = packet.status();
      } else if (!link_->Push(std::move(*packet))) {
        failure_ = {Code::kExhausted,
                    StrCat("too many messages wait for the controller at ", settings_.controller,
                           ": it does not read them; check that its process runs and is not overloaded")};
      }
    }
    stream_->Wake();
  }

  void Leave(TimePoint deadline) override {
    leaving_ = true;  // Before it is sent: the controller answers by ending the stream.
    Send(protocol::Leave{});
    leave_queued_ = true;
    stream_->Wake();
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return state_ == LinkState::kEnded; });
    lock.unlock();
    stop_ = true;
    stream_->Wake();
  }

  [[nodiscard]] LinkState state() const override {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  [[nodiscard]] Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  void Run() {
    while (!ended_) {
      if (stop_) {
        End(WhyClosed());
        break;
      }
      CheckDeadlines();
      if (ended_) break;
      Handle(stream_->Next(NextDeadline()));
    }
    stream_->Abort();
  }

  /// Ends the stream, if there is one, for `reason_`, and tries again soon.
  void GiveUpStream() {
    stream_->Abort();
    TryAgain();
  }

  void DeliverMessage(EncodedMessage encoded) {
    auto shared = std::make_shared<EncodedMessage>(std::move(encoded));
    deliveries_.Run([this, shared] {
      if (quiet_) return;
      auto message = Decode(std::move(*shared));
      if (message.ok()) return options_.on_message(std::move(*message));
      Fail(message.status());
    });
  }

  Result<protocol::ControllerMessage> Decode(EncodedMessage encoded) {
    return OrOutOfMemory(protocol::ToString(options_.hello.name), "a message of the controller",
                         [&]() -> Result<protocol::ControllerMessage> {
                           WC_ASSIGN_OR_RETURN(const std::string bytes, Unpack(std::move(encoded)));
                           return protocol::DecodeControllerMessage(bytes);
                         });
  }

  /// Ends the session from another thread.
  void Fail(Status reason) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::move(reason);
    }
    stream_->Wake();
  }

  /// When the search for a first controller ends.
  [[nodiscard]] TimePoint give_up() const {
    return ever_ || options_.patient ? TimePoint::max() : since_ + settings_.join_timeout;
  }
  [[nodiscard]] bool connected() const { return welcomed_; }

  [[nodiscard]] TimePoint NextDeadline() const {
    if (connected()) return std::min(next_beat_, heard_ + lease_);
    const TimePoint attempt = stream_->open() ? attempt_until_ : next_connect_;
    return std::min(attempt, give_up());
  }

  void CheckDeadlines() {
    const TimePoint now = Clock::now();
    if (const Status failure = TakeFailure(); !failure.ok()) return End(failure);
    if (connected()) {
      if (now >= heard_ + lease_) {
        Break({Code::kPeerDead, StrCat("the controller at ", settings_.controller, " missed heartbeats for ",
                                       Seconds(lease_), " s; check that it runs, and the network to it")});
        GiveUpStream();
      } else if (now >= next_beat_) {
        next_beat_ = now + Beat();
        link_->PushUrgent(heartbeat_);
        stream_->Kick();
      }
      if (leave_queued_ && link_->drained()) End(WhyClosed());
      return;
    }
    if (leaving_) return End(WhyClosed());
    if (now >= give_up()) return GiveUp();
    if (stream_->open()) {
      if (now < attempt_until_) return;
      reason_ = {Code::kTimedOut, StrCat("no answer from the controller at ", settings_.controller,
                                         "; check that it runs and the address")};
      GiveUpStream();
    } else if (now >= next_connect_) {
      Connect();
    }
  }

  Status TakeFailure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, Status::Ok());
  }

  [[nodiscard]] Duration Beat() const { return std::min(lease_, settings_.lease) / 4; }

  [[nodiscard]] Status WhyClosed() const {
    return {Code::kCancelled, StrCat("this process closed ", protocol::ToString(options_.hello.name),
                                     "; make a new one to go on")};
  }

  void GiveUp() {
    const std::string last = reason_.ok() ? std::string() : StrCat("; last: ", reason_.message());
    End({Code::kTimedOut,
         StrCat("no controller at ", settings_.controller, " for ", Seconds(settings_.join_timeout),
                " s; check that it runs and the address", last)});
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
    if (ever_ && Clock::now() >= since_ + lease_) Forget();
    link_->Hold();
    link_->PushUrgent(std::move(*packet), session_);
    attempt_until_ = Clock::now() + std::max(kLeastAttempt, settings_.lease);
    auto role = token_.ForWorker(member_);
    Status begun = role.status();
    if (role.ok())
      begun = stream_->Connect(
          {.address = settings_.controller, .token = std::move(*role), .lease = settings_.lease}, link_);
    if (!begun.ok()) Closed(begun);
  }

  /// No controller would go on with this session, and nothing is kept for it.
  void Forget() {
    session_ = 0;
    const std::lock_guard lock(mutex_);
    forgotten_ = true;
    link_->Reset();
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
    if (leaving_) return End(WhyClosed());
    if (reason.code() == Code::kPermission && IsRefusedForGood())
      return End({Code::kPermission,
                  StrCat(reason.message(), " (this process's token is from ", token_.origin(), ")")});
    if (reason.code() != Code::kPermission) refused_since_.reset();
    // Where a controller was before, something else may have its port for a while.
    if (reason.code() == Code::kProtocol && (connected() || !ever_)) return End(reason);
    if (connected()) {
      Break(reason);
    } else {
      reason_ = reason;
    }
    TryAgain();
  }

  /// Not connected, for `reason_`.
  void TryAgain() {
    options_.absence->Begin(since_, reason_);
    reported_ ? Remind() : Report(LinkState::kBroken, reason_);
    next_connect_ = Clock::now() + backoff_;
    backoff_ = std::min({2 * backoff_, kMaxBackoff, std::max(kFirstBackoff, settings_.lease / 4)});
  }

  /// The next attempt takes the token that is in the file by now, or else the one that was good before.
  [[nodiscard]] bool IsRefusedForGood() {
    auto fresh = ReadTokenAgain(token_);
    const bool other = fresh.ok() && !(*fresh == token_) && fresh->ForWorker(member_).ok();
    if (!ever_ && !other) return true;
    token_ = other ? std::move(*fresh) : good_token_;
    const TimePoint now = Clock::now();
    if (!refused_since_) refused_since_ = now;
    return now >= *refused_since_ + settings_.join_timeout;
  }

  /// Now and then, and ever less often: a user who looks at what seems to hang is to see what it waits for.
  void Remind() {
    const TimePoint now = Clock::now();
    if (now < remind_) return;
    remind_ = now + std::min(now - since_, kRarestReminder);
    WC_LOG(kWarning, "still no controller at ", settings_.controller, ", for ",
           std::lround(Seconds(now - since_)),
           " s now; check that it runs, and the address; last: ", reason_.message());
  }

  /// From now on there is no controller.
  void Miss(const Status& reason) {
    since_ = Clock::now();
    remind_ = since_ + kFirstReminder;
    options_.absence->Begin(since_, reason);
  }

  /// There is one again; who was reminded that there is none is told.
  void Find() {
    const TimePoint now = Clock::now();
    options_.absence->End();
    refused_since_.reset();
    good_token_ = token_;
    if (now < since_ + kFirstReminder) return;
    WC_LOG(kWarning, "the controller at ", settings_.controller, " has answered, after ",
           std::lround(Seconds(now - since_)), " s");
  }

  /// From connected to not.
  void Break(const Status& reason) {
    welcomed_ = false;
    Miss(reason);
    reason_ = reason;
    Report(LinkState::kBroken, reason);
  }

  void HandleMessage(ControllerStream::Event& event) {
    if (event.number == 0) return HandleUnnumbered(event);
    if (!connected()) return;  // It comes after the welcome, or is nonsense.
    bool duplicate = false;
    if (!link_->Acknowledge(event.acknowledged) || !link_->Receive(event.number, duplicate)) {
      Break({Code::kProtocol, StrCat("the controller at ", settings_.controller,
                                     " broke the order of messages; use the same weightcast on all hosts")});
      session_ = 0;
      GiveUpStream();
      return;
    }
    if (!duplicate) DeliverMessage(std::move(event.message));
  }

  /// Welcome, Refused and Heartbeat: small, and this thread's to understand.
  void HandleUnnumbered(ControllerStream::Event& event) {
    auto message = Decode(event.message);
    if (!message.ok()) {
      if (connected() || !ever_) return End(message.status());
      reason_ = message.status();  // The process that has the port meanwhile may be no controller.
      return GiveUpStream();
    }
    if (const auto* welcome = std::get_if<protocol::Welcome>(&*message)) {
      Welcome(*welcome, event);
    } else if (const auto* refused = std::get_if<protocol::Refused>(&*message)) {
      DeliverMessage(std::move(event.message));
      End(refused->reason);
    } else if (connected() && !link_->Acknowledge(event.acknowledged)) {
      End({Code::kProtocol, StrCat("the controller at ", settings_.controller,
                                   " broke the order of messages; use the same weightcast on all hosts")});
    }
  }

  void Welcome(const protocol::Welcome& welcome, ControllerStream::Event& event) {
    if (connected()) return;
    if (welcome.term < term_) {
      const Status older(Code::kUnavailable,
                         StrCat("the controller at ", settings_.controller, " is of term ",
                                welcome.term.number, ", and this worker has followed a newer one of term ",
                                term_.number, "; end the older controller"));
      // What was told before was why the newer one is gone; that it found this one is news, once.
      if (reason_ != older) Report(LinkState::kBroken, older);
      reason_ = older;
      GiveUpStream();
      return;
    }
    const bool resumed = session_ != 0 && event.session == session_ && welcome.term == term_;
    if (!resumed) {
      BeginSession();
    } else if (!link_->Rewind(event.acknowledged)) {
      session_ = 0;  // Next time from the beginning.
      GiveUpStream();
      return;
    }
    term_ = welcome.term;
    session_ = event.session;
    AdoptLease(welcome.lease_seconds);
    Find();
    welcomed_ = true;
    ever_ = true;
    backoff_ = kFirstBackoff;
    next_beat_ = Clock::now() + Beat();
    reason_ = Status::Ok();
    if (!resumed) DeliverMessage(std::move(event.message));
    Report(LinkState::kConnected, Status::Ok());
    stream_->Kick();
  }

  /// The controller knows only the Hello. Before the first session nothing can have been meant for another.
  void BeginSession() {
    const std::lock_guard lock(mutex_);
    if (!ever_) {
      link_->Rewind(0);
      return;
    }
    link_->Reset();
    dropping_ = true;
    forgotten_ = false;
  }

  void AdoptLease(double seconds) {
    const Duration lease = FromSeconds(std::clamp(seconds, 0.001, 1e6));
    if (lease != settings_.lease && !warned_) {
      warned_ = true;
      WC_LOG(kWarning, "the controller's lease is ", seconds, " s, this worker's ", Seconds(settings_.lease),
             " s; set WEIGHTCAST_LEASE to the same everywhere");
    }
    lease_ = lease;
  }

  void Report(LinkState state, const Status& reason) {
    reported_ = true;
    {
      const std::lock_guard lock(mutex_);
      state_ = state;
      status_ = reason;
    }
    changed_.notify_all();
    deliveries_.Run([this, state, reason] {
      if (!quiet_ || state == LinkState::kEnded) options_.on_state(state, reason);
    });
  }

  void End(const Status& reason) {
    if (ended_) return;
    ended_ = true;
    welcomed_ = false;
    Report(LinkState::kEnded, reason);
  }

  ClientOptions options_;  ///< hello: under the mutex.
  const Settings settings_;

  const stream::Member member_;

  // The thread's.
  Token token_;
  Token good_token_;  ///< Of the last welcome.
  bool ended_ = false;
  bool welcomed_ = false;
  bool ever_ = false;  ///< Has been welcomed.
  bool reported_ = false;
  bool warned_ = false;
  Duration lease_;  ///< The controller's, once known.
  Duration backoff_ = kFirstBackoff;
  protocol::Term term_;
  uint64_t session_ = 0;
  Status reason_;    ///< Of the last failure.
  TimePoint since_;  ///< Without a controller.
  TimePoint remind_;
  std::optional<TimePoint> refused_since_;  ///< For the token, and nothing else since.
  TimePoint next_connect_;
  TimePoint attempt_until_;
  TimePoint heard_;
  TimePoint next_beat_;

  const std::shared_ptr<SessionLink> link_;
  const SharedPacket heartbeat_;
  const std::unique_ptr<ControllerStream> stream_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> leave_queued_{false};
  std::atomic<bool> quiet_{false};  ///< Being destroyed.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LinkState state_ = LinkState::kBroken;
  Status status_;
  Status failure_;
  bool dropping_ = false;   ///< Until the next registration.
  bool forgotten_ = false;  ///< Until the next session.

  std::thread thread_;
  TaskThread deliveries_{"wc-deliver"};  ///< Runs the caller's code. Last: its tasks use the others.
};

}  // namespace

Result<std::unique_ptr<ControlClient>> ControlClient::Start(ClientOptions options) {
  WC_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.settings.controller));
  if (address.port == 0)
    return Status(Code::kInvalidArgument, StrCat("setting controller is '", options.settings.controller,
                                                 "', which has no port; write HOST:PORT"));
  WC_ASSIGN_OR_RETURN(Token token, LoadToken(options.settings));
  WC_RETURN_IF_ERROR(token.ForWorker(MemberOf(options.hello.name)).status());
  WC_ASSIGN_OR_RETURN(auto stream, ControllerStream::Create());
  auto client = std::make_unique<Client>(std::move(options), std::move(token), std::move(stream));
  WC_RETURN_IF_ERROR(client->Begin());
  return std::unique_ptr<ControlClient>(std::move(client));
}

}  // namespace weightcast::control
