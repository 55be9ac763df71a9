#include "stream/stream_loop.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cassert>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/process.h"
#include "base/socket.h"
#include "base/strings.h"

namespace weightcast::stream {
namespace {

constexpr uint64_t kLoopWakeKey = 0;
constexpr uint64_t kHandshakesKey = 1;
constexpr uint64_t kFirstStreamKey = 2;
constexpr auto kLinger = std::chrono::seconds(2);
constexpr size_t kEventsAtOnce = 256;
/// What a stranger's socket was given is too small for a stream.
constexpr int kReceiveBuffer = 512 << 10;

/// Connections that may wait for their handshake: all of a large job come at once. A quarter of the
/// descriptors is for strangers, a sixteenth for all else; the rest is shared with streams and handshakes.
size_t MostWaiting(size_t taken) {
  const size_t limit = DescriptorLimit();
  const size_t shared = limit - limit / 4 - limit / 16;
  return std::clamp<size_t>(shared - std::min(shared, taken), std::clamp<size_t>(limit / 8, 16, 4096), 16384);
}

}  // namespace

class StreamLoop::Stream final : public ServerStream, public std::enable_shared_from_this<Stream> {
 public:
  Stream(StreamLoop& loop, uint64_t number, Handshakes::Proven proven)
      : loop_(loop),
        id(number),
        connection(std::move(proven.connection)),
        member_(std::move(proven.member)),
        peer_(std::move(proven.peer)) {}

  [[nodiscard]] const Member& member() const override { return member_; }
  [[nodiscard]] const std::string& peer() const override { return peer_; }
  [[nodiscard]] size_t queued() const override { return connection == nullptr ? 0 : connection->queued(); }

  Status Send(std::string_view body) override {
    if (over())
      return Error(Code::kCancelled, "the stream of ", peer_, " has ended; see the log of that process");
    assert(loop_.OnThread());
    Status status = connection->Queue(FrameKind::kData, body);
    if (status.code() == Code::kExhausted) aborted = status;
    MarkDirty();
    return status;
  }
  void Pause() override {
    if (over()) return;
    assert(loop_.OnThread());
    paused = true;
  }
  void Resume() override {
    if (!std::exchange(paused, false) || over()) return;
    assert(loop_.OnThread());
    MarkReady();
  }
  void Close(const Status& reason) override {
    if (over()) return;
    assert(loop_.OnThread());
    (void)connection->Queue(FrameKind::kClose, EncodeReason(reason));
    closing = reason;
    paused = false;
    loop_.closing_.emplace_back(Clock::now() + kLinger, shared_from_this());
    MarkDirty();
    MarkReady();  // What has come and was not heard yet is dropped.
  }
  void Abort(const Status& reason) override {
    if (over()) return;
    assert(loop_.OnThread());
    aborted = reason;
    MarkDirty();
  }

  [[nodiscard]] bool over() const { return connection == nullptr || closing || aborted; }
  void MarkDirty() {
    if (!std::exchange(dirty, true)) loop_.dirty_.push_back(shared_from_this());
  }
  void MarkReady() {
    if (!std::exchange(ready, true)) loop_.ready_.push_back(shared_from_this());
  }

 private:
  StreamLoop& loop_;

 public:  // The loop's.
  const uint64_t id;
  std::unique_ptr<Connection> connection;  ///< Null once dropped.
  uint32_t interest = 0;
  bool watched = false;
  bool paused = false;
  bool ready = false;
  bool dirty = false;
  std::optional<Status> closing;  ///< Ends once all has gone out.
  std::optional<Status> aborted;  ///< Ends with this turn.

 private:
  const Member member_;
  const std::string peer_;
};

Status StreamLoop::Begin(std::shared_ptr<const ServerKeys> keys, Duration patience, size_t most_handshakes) {
  next_id_ = kFirstStreamKey;
  most_handshakes_ = most_handshakes;
  WC_ASSIGN_OR_RETURN(poller_, Poller::Create());
  WC_ASSIGN_OR_RETURN(wake_, WakeFd::Create());
  WC_ASSIGN_OR_RETURN(handshakes_,
                      Handshakes::Create({.keys = std::move(keys),
                                          .most = most_handshakes,
                                          .most_waiting = MostWaiting(most_handshakes),
                                          .most_queued = most_queued_,
                                          .patience = patience,
                                          .on_proven = [this](auto proven) { Open(std::move(proven)); },
                                          .wake = [this] { wake_.Wake(); }}));
  WC_RETURN_IF_ERROR(poller_.Add(wake_.fd(), EPOLLIN, kLoopWakeKey));
  return poller_.Add(handshakes_->fd(), EPOLLIN, kHandshakesKey);
}

void StreamLoop::LimitWaiting() {
  handshakes_->LimitWaiting(MostWaiting(streams_.size() + most_handshakes_));
}

void StreamLoop::Stop() {
  stop_ = true;
  wake_.Wake();
}

void StreamLoop::Post(std::function<void()> task) {
  if (tasks_.Push(MakeTask(std::move(task)))) wake_.Wake();
}

void StreamLoop::Run() {
  thread_ = std::this_thread::get_id();
  while (!stop_) Turn();
  for (auto& [id, stream] : streams_) {
    stream->connection->End();
    stream->connection.reset();
  }
  streams_.clear();
  ready_.clear();
  dirty_.clear();
  closing_.clear();
}

/// What is established comes before strangers.
void StreamLoop::Turn() {
  std::array<epoll_event, kEventsAtOnce> events{};
  const int count = poller_.Wait(events, Timeout());
  wake_.Drain();
  tasks_.RunAll();
  for (int i = 0; i < count && !stop_; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.u64 >= kFirstStreamKey) Serve(event.data.u64, event.events);
  }
  ServeReady();
  FlushAll();
  EndLate();
  handshakes_->Step();
}

std::optional<Duration> StreamLoop::Timeout() const {
  if (!ready_.empty() || !dirty_.empty() || handshakes_->busy()) return Duration::zero();
  TimePoint until = handshakes_->deadline();
  if (!closing_.empty()) until = std::min(until, closing_.front().first);
  if (until == kNever) return std::nullopt;
  return std::max(Duration::zero(), Duration(until - Clock::now()));
}

void StreamLoop::Open(Handshakes::Proven proven) {
  const uint64_t id = next_id_++;
  const int fd = proven.connection->fd();
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof kReceiveBuffer);
  TuneTcp(fd, lease_);
  const auto stream = std::make_shared<Stream>(*this, id, std::move(proven));
  if (const Status status = poller_.Add(fd, EPOLLIN, id); !status.ok()) {
    WC_LOG_LIMITED(kWarning, "cannot take the stream of ", stream->peer(), ": ", status.message());
    return;
  }
  stream->watched = true;
  stream->interest = EPOLLIN;
  streams_.emplace(id, stream);
  LimitWaiting();
  stream->MarkDirty();  // The proof.
  handlers_.on_open(stream);
  if (stream->connection->HasFrame()) stream->MarkReady();
}

void StreamLoop::Serve(uint64_t id, uint32_t events) {
  const auto at = streams_.find(id);
  if (at == streams_.end()) return;  // Dropped earlier in this turn.
  const StreamPtr stream = at->second;
  if ((events & EPOLLOUT) != 0) stream->MarkDirty();
  if (stream->paused && (events & (EPOLLHUP | EPOLLERR)) != 0) {
    poller_.Remove(stream->connection->fd());  // It would tell of its end again and again.
    stream->watched = false;
    return;
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  stream->closing ? Discard(stream) : Deliver(stream);
}

/// Of a stream that is to end: what still comes is read, because closing a socket with unread bytes would
/// destroy the reason on its way. It ends with the other side, or late.
void StreamLoop::Discard(const StreamPtr& stream) {
  stream->connection->Read();
  while (true) {
    const auto frame = stream->connection->Next();
    if (!frame.ok()) return Drop(stream, stream->closing.value_or(Status()));
    if (!*frame) return SetInterest(stream);
  }
}

/// A turn's share of frames.
void StreamLoop::Deliver(const StreamPtr& stream) {
  bool read = false;
  for (size_t i = 0; i < kMostFramesATurn && !stream->paused && !stream->over(); ++i) {
    auto frame = OrOutOfMemory("the controller", "a frame", [&] {
      if (!stream->connection->HasFrame() && !std::exchange(read, true)) stream->connection->Read();
      return stream->connection->Next();
    });
    if (!frame.ok()) return Drop(stream, frame.status());
    std::optional<Frame> got = std::move(*frame);
    if (!got) break;
    if (!DeliverFrame(stream, std::move(*got))) return;
  }
  // The poller tells no more of one that it does not watch: it is read until its end is seen.
  if (!stream->paused && !stream->over() && (stream->connection->HasFrame() || !stream->watched))
    stream->MarkReady();
  SetInterest(stream);
}

/// False when it was the last.
bool StreamLoop::DeliverFrame(const StreamPtr& stream, Frame frame) {
  switch (frame.kind) {
    case FrameKind::kData:
      handlers_.on_message(stream, std::move(frame.body));
      return true;
    case FrameKind::kClose:
      Drop(stream, DecodeReason(frame.body));
      return false;
    case FrameKind::kProof:
      break;
  }
  Drop(stream,
       {Code::kProtocol,
        "it sent a proof frame, which only the controller sends; use the same weightcast on all hosts"});
  return false;
}

void StreamLoop::ServeReady() {
  const std::vector<StreamPtr> ready = std::exchange(ready_, {});
  for (const StreamPtr& stream : ready) {
    stream->ready = false;
    if (stream->connection != nullptr) stream->closing ? Discard(stream) : Deliver(stream);
  }
}

void StreamLoop::FlushAll() {
  const std::vector<StreamPtr> dirty = std::exchange(dirty_, {});
  for (const StreamPtr& stream : dirty) {
    stream->dirty = false;
    if (stream->connection != nullptr) Flush(stream);
  }
}

void StreamLoop::Flush(const StreamPtr& stream) {
  if (stream->aborted) return Drop(stream, stream->aborted.value_or(Status()));
  const size_t before = stream->queued();
  if (const Status status = stream->connection->Flush(); !status.ok()) {
    stream->connection->Read();  // The other side may have said why before it ended: that tells more.
    stream->connection->EndWith(status);
    return stream->MarkReady();
  }
  if (stream->closing && !stream->connection->wants_write()) stream->connection->End();
  SetInterest(stream);
  const size_t left = stream->queued();
  if (handlers_.on_room != nullptr && left < before && left < kLowWater && !stream->over())
    handlers_.on_room(stream);
}

void StreamLoop::EndLate() {
  const TimePoint now = Clock::now();
  while (!closing_.empty() &&
         (closing_.front().first <= now || closing_.front().second->connection == nullptr)) {
    const StreamPtr stream = std::move(closing_.front().second);
    closing_.pop_front();
    if (stream->connection != nullptr) Drop(stream, stream->closing.value_or(Status()));
  }
}

void StreamLoop::SetInterest(const StreamPtr& stream) {
  if (stream->connection == nullptr || !stream->watched) return;
  const bool reads = !stream->paused && !stream->aborted && !stream->connection->HasFrame();
  const uint32_t interest =
      (reads ? uint32_t{EPOLLIN} : 0) | (stream->connection->wants_write() ? uint32_t{EPOLLOUT} : 0);
  if (std::exchange(stream->interest, interest) != interest)
    (void)poller_.Modify(stream->connection->fd(), interest, stream->id);
}

void StreamLoop::Drop(const StreamPtr& stream, const Status& reason) {
  stream->connection->End();
  if (stream->watched) poller_.Remove(stream->connection->fd());
  streams_.erase(stream->id);
  LimitWaiting();
  stream->connection.reset();
  handlers_.on_closed(stream, reason);
}

}  // namespace weightcast::stream
