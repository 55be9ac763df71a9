#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "stream/secret.h"
#include "weightcast/status.h"

/// TLS 1.3 between two memories. OpenSSL never sees a socket.
namespace weightcast::stream {

/// What all sessions of one side share: one suite, one group, no tickets, no early data, no certificate.
class TlsContext {
 public:
  enum class Side : uint8_t { kClient, kServer };
  /// `protocol`: what both sides must name in ALPN. Errors: kExhausted.
  static Result<TlsContext> Make(Side side, const std::string& protocol);

  [[nodiscard]] Side side() const { return shared_->side; }
  [[nodiscard]] SSL_CTX* get() const { return shared_->context.get(); }

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const;
  };
  struct Shared {
    Side side = Side::kClient;
    std::string protocol;
    std::unique_ptr<SSL_CTX, FreeContext> context;
  };
  static Status Restrict(Shared& shared);
  std::shared_ptr<Shared> shared_;  ///< Callbacks keep its address.
};

struct PreSharedKey {
  std::string identity;
  Secret key;
};

/// Why a session failed.
struct TlsFailure {
  enum class Kind : uint8_t {
    kNone,
    kAlert,     ///< The other side said `alert`.
    kUnproven,  ///< It has not used the key: an impostor.
    kNotTls,    ///< It speaks something else.
    kBroken,    ///< Bytes that do not decrypt, and all else.
  };
  Kind kind = Kind::kNone;
  int alert = 0;
  std::string text = {};  ///< OpenSSL's words.
};

/// One side of one connection. One thread's.
class TlsSession {
 public:
  /// With the one key that this side has, or that the other side's ClientHello names. Errors: kExhausted.
  static Result<TlsSession> Begin(TlsContext context, PreSharedKey key);

  /// Takes what came from the network and appends what it says to `plaintext`. A client begins with "".
  /// Errors: kProtocol, see failure(). What is to be sent before the connection ends lies in TakeOutput.
  Status Receive(std::string_view ciphertext, std::string& plaintext);
  /// The handshake is over, and the other side has used the key.
  [[nodiscard]] bool established() const { return state_->established; }
  /// The other side has said that nothing follows.
  [[nodiscard]] bool ended() const { return state_->ended; }
  [[nodiscard]] const TlsFailure& failure() const { return state_->failure; }
  /// Encrypts. Only once established.
  Status Send(std::string_view plaintext);
  /// Says that nothing follows.
  void SendEnd();
  /// Appends what is for the network.
  void TakeOutput(std::string& out);
  /// 32 bytes that only the two ends of this session have. Only once established.
  [[nodiscard]] Result<std::string> Exporter() const;

 private:
  struct FreeSession {
    void operator()(SSL* session) const;
  };
  struct State {
    TlsContext context;
    PreSharedKey key;
    bool established = false;
    bool ended = false;
    TlsFailure failure;
    std::unique_ptr<SSL, FreeSession> ssl;
  };
  friend struct TlsCallbacks;
  explicit TlsSession(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Status Handshake();
  Status Fail(TlsFailure failure);
  Status FailOf(int outcome);

  std::unique_ptr<State> state_;  ///< OpenSSL's callbacks keep its address.
};

}  // namespace weightcast::stream
