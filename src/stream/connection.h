#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "stream/frame.h"
#include "stream/tls.h"
#include "weightcast/status.h"

namespace weightcast::stream {

/// Frames over TLS over a non-blocking socket: either side, before and after the handshake. No call blocks.
/// One thread's.
class Connection {
 public:
  static constexpr size_t kReadAtOnce = size_t{64} << 10;
  static constexpr size_t kFlushAtOnce = size_t{256} << 10;
  static constexpr size_t kMostCiphertext = size_t{64} << 10;

  /// `most_queued`: bytes of frames that may wait for the other side to read.
  Connection(UniqueFd fd, TlsSession tls, size_t most_queued);

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const TlsSession& tls() const { return tls_; }

  /// Takes bytes that lie elsewhere already; a client begins with "".
  void Take(std::string_view ciphertext);
  /// Takes at most kReadAtOnce from the socket. To be called only while HasFrame is false: it bounds what is
  /// kept.
  void Read();
  /// The next frame, nullopt if it is not here yet. When all are taken: why no more comes (kUnavailable: the
  /// other side has ended it; kProtocol).
  Result<std::optional<Frame>> Next();
  /// Next has a frame or an error.
  [[nodiscard]] bool HasFrame() const { return !end_.ok() || frames_.HasFrame(); }
  /// No more comes, for this reason unless there was one before. What has come can still be taken.
  void EndWith(Status reason);
  /// Why no more comes; ok while more can come.
  [[nodiscard]] const Status& end() const { return end_; }
  /// The first bytes that came, at most kOpeningBytes: what the other side speaks, where it is not TLS.
  [[nodiscard]] const std::string& opening() const { return opening_; }

  /// To be sent by Flush. Errors: kExhausted, more would wait than may; kInvalidArgument for a body too long.
  Status Queue(FrameKind kind, std::string_view body);
  /// Sends what the socket takes, at most about kFlushAtOnce. Errors: kUnavailable.
  Status Flush();
  [[nodiscard]] bool wants_write() const { return !cipher_.empty() || (tls_.established() && queued_ > 0); }
  [[nodiscard]] size_t queued() const { return queued_; }
  /// Says that nothing follows, as far as the socket takes it at once.
  void End();

 private:
  static constexpr size_t kOpeningBytes = 32;
  std::string TakeRecord();
  Status Encrypt();
  Status SendCiphertext(size_t& sent);

  UniqueFd fd_;
  TlsSession tls_;
  const size_t most_queued_;
  FrameDecoder frames_;
  std::string opening_;
  Status end_;
  std::deque<std::string> waiting_;  ///< Frames, not encrypted yet.
  size_t front_taken_ = 0;           ///< Of the first, encrypted already.
  size_t queued_ = 0;                ///< Bytes of all, without those.
  std::string cipher_;
  size_t cipher_sent_ = 0;
};

}  // namespace weightcast::stream
