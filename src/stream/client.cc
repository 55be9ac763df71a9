#include "stream/client.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/advice.h"
#include "base/poller.h"
#include "base/socket.h"
#include "base/strings.h"
#include "stream/connection.h"
#include "stream/connector.h"
#include "stream/keys.h"

namespace weightcast::stream {
namespace {

enum PollKey : uint64_t { kWakeKey, kConnectorKey, kStreamKey };

class Client final : public ClientStream {
 public:
  ~Client() override {
    if (connector_ != nullptr) Abort();  // Otherwise it has never begun.
  }

  Status Begin() {
    WC_ASSIGN_OR_RETURN(poller_, Poller::Create());
    WC_ASSIGN_OR_RETURN(wake_, WakeFd::Create());
    WC_ASSIGN_OR_RETURN(connector_, Connector::Create());
    WC_RETURN_IF_ERROR(poller_.Add(wake_.fd(), EPOLLIN, kWakeKey));
    return poller_.Add(connector_->fd(), EPOLLIN, kConnectorKey);
  }

  Status Connect(Target target) override {
    if (active())
      return Error(Code::kInvalidArgument, "a stream to the controller is open already", kReportBug);
    WC_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(target.address));
    WC_ASSIGN_OR_RETURN(ClientKeys keys, ClientKeysOf(target.token, target.purpose, target.version));
    lease_ = target.lease;
    connecting_ = true;
    connector_->Start({.host = place.host,
                       .port = place.port,
                       .version = target.version,
                       .keys = std::move(keys),
                       .most_queued = target.most_queued});
    return Status::Ok();
  }

  Status Send(std::string_view body) override {
    if (connection_ == nullptr || closing_)
      return {Code::kCancelled, "the other side has ended the stream; see its log, and run this again"};
    Status status = connection_->Queue(FrameKind::kData, body);
    if (status.code() == Code::kExhausted) failure_ = status;
    return status;
  }
  [[nodiscard]] size_t queued() const override { return connection_ == nullptr ? 0 : connection_->queued(); }

  void Close(const Status& reason) override {
    if (connection_ == nullptr || closing_) return;
    (void)connection_->Queue(FrameKind::kClose, EncodeReason(reason));
    closing_ = reason;
  }
  void Abort() override {
    connector_->Cancel();
    connecting_ = false;
    if (connection_ != nullptr) End();
  }
  [[nodiscard]] bool active() const override { return connecting_ || connection_ != nullptr; }
  void Wake() override { wake_.Wake(); }

  Event Next(TimePoint until) override {
    while (true) {
      if (auto event = FromStream()) return std::move(*event);
      if (auto event = FromConnector()) return std::move(*event);
      WatchStream();
      std::array<epoll_event, 4> events{};
      const TimePoint wake_at = connecting_ ? std::min(until, connector_->deadline()) : until;
      const int count = poller_.Wait(events, Left(wake_at));
      for (int i = 0; i < count; ++i) Note(events[static_cast<size_t>(i)]);
      if (std::exchange(woken_, false)) return {.kind = Event::Kind::kWoken};
      if (count == 0 && Clock::now() >= until) return {};
    }
  }

 private:
  static std::optional<Duration> Left(TimePoint until) {
    if (until == kNever) return std::nullopt;
    const TimePoint now = Clock::now();
    return until <= now ? Duration::zero() : Duration(until - now);
  }

  void Note(const epoll_event& event) {
    if (event.data.u64 == kStreamKey) readable_ = readable_ || (event.events & ~uint32_t{EPOLLOUT}) != 0;
    if (event.data.u64 != kWakeKey) return;
    wake_.Drain();
    woken_ = true;
  }

  std::optional<Event> FromConnector() {
    if (!connecting_) return std::nullopt;
    auto outcome = connector_->Step();
    if (!outcome) return std::nullopt;
    connecting_ = false;
    if (!outcome->ok()) return Event{.kind = Event::Kind::kClosed, .reason = outcome->status()};
    connection_ = std::move(**outcome);
    TuneTcp(connection_->fd(), lease_);
    interest_ = EPOLLIN;
    if (Status status = poller_.Add(connection_->fd(), interest_, kStreamKey); !status.ok()) {
      connection_.reset();
      return Event{.kind = Event::Kind::kClosed, .reason = std::move(status)};
    }
    return Event{.kind = Event::Kind::kOpened};
  }

  std::optional<Event> FromStream() {
    if (connection_ == nullptr) return std::nullopt;
    if (!failure_.ok()) return Closed(std::exchange(failure_, Status::Ok()));
    if (auto event = FromFlush()) return event;
    const bool partial = std::exchange(readable_, false) && !connection_->HasFrame();
    if (partial) connection_->Read();
    auto frame = connection_->Next();
    if (!frame.ok()) return Closed(frame.status());
    std::optional<Frame> got = std::move(*frame);
    if (!got) return partial ? std::optional(Event{.kind = Event::Kind::kPartial}) : std::nullopt;
    switch (got->kind) {
      case FrameKind::kData:
        return Event{.kind = Event::Kind::kMessage, .body = std::move(got->body)};
      case FrameKind::kClose: {
        const Status why = DecodeReason(got->body);  // "It sent" is said of this process.
        const bool of_us = got->body.starts_with(static_cast<char>(Code::kProtocol));
        return Closed(Error(why.code(), of_us ? "the controller says of this process: " : "", why.message()));
      }
      case FrameKind::kProof:
        break;
    }
    return Closed(
        {Code::kProtocol,
         "the controller proved its key twice on one stream; use the same weightcast on all hosts"});
  }

  std::optional<Event> FromFlush() {
    const size_t before = connection_->queued();
    if (const Status status = connection_->Flush(); !status.ok()) {
      connection_->Read();  // The other side may have said why before it ended: that tells more.
      connection_->EndWith(status);
      return std::nullopt;
    }
    if (closing_ && !connection_->wants_write()) return Closed(*closing_);
    const size_t left = connection_->queued();
    if (left == before || left >= kLowWater || closing_) return std::nullopt;
    return Event{.kind = Event::Kind::kRoom};
  }

  void WatchStream() {
    if (connection_ == nullptr) return;
    const uint32_t interest = uint32_t{EPOLLIN} | (connection_->wants_write() ? uint32_t{EPOLLOUT} : 0);
    if (std::exchange(interest_, interest) != interest)
      (void)poller_.Modify(connection_->fd(), interest, kStreamKey);
  }

  Event Closed(Status reason) {
    End();
    return {.kind = Event::Kind::kClosed, .reason = std::move(reason)};
  }
  void End() {
    connection_->End();
    poller_.Remove(connection_->fd());
    connection_.reset();
    closing_.reset();
    failure_ = Status::Ok();
    readable_ = false;
  }

  Poller poller_;
  WakeFd wake_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<Connection> connection_;
  Duration lease_{};
  bool connecting_ = false;
  bool readable_ = false;
  bool woken_ = false;
  uint32_t interest_ = 0;
  std::optional<Status> closing_;
  Status failure_;
};

}  // namespace

Result<std::unique_ptr<ClientStream>> ClientStream::Create() {
  auto client = std::make_unique<Client>();
  WC_RETURN_IF_ERROR(client->Begin());
  return std::unique_ptr<ClientStream>(std::move(client));
}

}  // namespace weightcast::stream
