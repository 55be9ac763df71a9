#include "stream/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/advice.h"
#include "base/strings.h"

namespace weightcast::stream {
namespace {

constexpr size_t kRecordBytes = size_t{16} << 10;

Status Broken(std::string_view what, int error) {
  return Error(Code::kUnavailable, "the stream broke: ", what, ": ", ErrnoText(error),
               "; check the network, and that the other side runs");
}

Status ClosedSilently() {
  return {Code::kUnavailable,
          "the other side has closed the stream without a reason; see its log, and check that it runs"};
}

}  // namespace

Connection::Connection(UniqueFd fd, TlsSession tls, size_t most_queued)
    : fd_(std::move(fd)), tls_(std::move(tls)), most_queued_(most_queued) {}

void Connection::EndWith(Status reason) {
  if (!end_.ok()) return;
  end_ = std::move(reason);
  size_t sent = 0;
  if (tls_.failure().kind != TlsFailure::Kind::kNone) (void)SendCiphertext(sent);  // The alert says why.
}

void Connection::Take(std::string_view ciphertext) {
  if (opening_.size() < kOpeningBytes) opening_ += ciphertext.substr(0, kOpeningBytes - opening_.size());
  std::string plaintext;
  const Status status = tls_.Receive(ciphertext, plaintext);
  tls_.TakeOutput(cipher_);
  frames_.Add(plaintext);
  if (!status.ok()) return EndWith(status);
  // TLS itself answers to what the other side may send without end (KeyUpdate).
  if (cipher_.size() - cipher_sent_ > kMostCiphertext + 2 * kRecordBytes)
    return EndWith(
        Error(Code::kExhausted, "the other side sends requests and does not read the answers", kSeePeer));
  if (tls_.ended()) EndWith(ClosedSilently());
}

void Connection::Read() {
  std::array<char, kRecordBytes> bytes;
  for (size_t taken = 0; taken < kReadAtOnce && !HasFrame();) {
    const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0) return EndWith(ClosedSilently());
    if (got < 0) {
      if (errno != EAGAIN && errno != EINTR) EndWith(Broken("recv", errno));
      return;
    }
    taken += static_cast<size_t>(got);
    Take({bytes.data(), static_cast<size_t>(got)});
  }
}

Result<std::optional<Frame>> Connection::Next() {
  auto frame = frames_.Next();
  if (frame.ok() && !*frame && !end_.ok()) return end_;
  return frame;
}

Status Connection::Queue(FrameKind kind, std::string_view body) {
  if (body.size() > kMostFrameBytes)
    return Error(Code::kInvalidArgument, "a frame of ", body.size(), " bytes; at most ", kMostFrameBytes,
                 " go into one: please report this as a bug");
  // The reason of the end always finds a place.
  if (kind != FrameKind::kClose && queued_ + body.size() + kFrameHead > most_queued_)
    return Error(Code::kExhausted, "the other side does not read: ", queued_, " bytes wait for it; at most ",
                 most_queued_, " may", kSeePeer);
  std::string frame;
  frame.reserve(kFrameHead + body.size());
  AppendFrame(frame, kind, body);
  queued_ += frame.size();
  waiting_.push_back(std::move(frame));
  return Status::Ok();
}

/// The next bytes of the queue, at most one TLS record's. OpenSSL's memory keeps the size of the largest.
std::string Connection::TakeRecord() {
  std::string record;
  while (!waiting_.empty() && record.size() < kRecordBytes) {
    const std::string& frame = waiting_.front();
    const size_t size = std::min(kRecordBytes - record.size(), frame.size() - front_taken_);
    record.append(frame, front_taken_, size);
    queued_ -= size;
    front_taken_ += size;
    if (front_taken_ < frame.size()) break;
    waiting_.pop_front();
    front_taken_ = 0;
  }
  return record;
}

Status Connection::Encrypt() {
  while (!waiting_.empty() && cipher_.size() < kMostCiphertext) {
    WC_RETURN_IF_ERROR(tls_.Send(TakeRecord()));
    tls_.TakeOutput(cipher_);
  }
  return Status::Ok();
}

Status Connection::SendCiphertext(size_t& sent) {
  while (cipher_sent_ < cipher_.size()) {
    const ssize_t took = ::send(fd_.get(), cipher_.data() + cipher_sent_, cipher_.size() - cipher_sent_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (took < 0 && errno == EINTR) continue;
    if (took < 0 && errno == EAGAIN) return Status::Ok();
    if (took < 0) return Broken("send", errno);
    cipher_sent_ += static_cast<size_t>(took);
    sent += static_cast<size_t>(took);
  }
  std::string().swap(cipher_);  // Nothing is kept by a stream that rests.
  cipher_sent_ = 0;
  return Status::Ok();
}

Status Connection::Flush() {
  size_t sent = 0;
  while (true) {
    WC_RETURN_IF_ERROR(SendCiphertext(sent));
    if (!cipher_.empty() || waiting_.empty() || !tls_.established() || sent >= kFlushAtOnce)
      return Status::Ok();
    WC_RETURN_IF_ERROR(Encrypt());
  }
}

void Connection::End() {
  tls_.SendEnd();
  tls_.TakeOutput(cipher_);
  size_t sent = 0;
  if (SendCiphertext(sent).ok()) ::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace weightcast::stream
