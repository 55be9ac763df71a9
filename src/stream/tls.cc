#include "stream/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>

#include "base/strings.h"
#include "stream/library.h"

namespace weightcast::stream {
namespace {

constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kSuiteNumber = {0x13, 0x01};
constexpr const char* kGroup = "X25519";
constexpr std::string_view kExporterLabel = "EXPORTER-weightcast-controller";
constexpr size_t kExporterBytes = 32;
constexpr size_t kReadAtOnce = size_t{16} << 10;  // A record's plaintext.

unsigned char* Writable(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

Status NoMemory(std::string_view what) {
  ERR_clear_error();
  return Error(Code::kExhausted, "OpenSSL has no memory here for ", what, "; give more memory here");
}

using SessionPtr = std::unique_ptr<SSL_SESSION, decltype(&SSL_SESSION_free)>;

/// The key as OpenSSL wants it.
SessionPtr SessionOf(SSL* ssl, const Secret& key) {
  SessionPtr session(SSL_SESSION_new(), &SSL_SESSION_free);
  const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl, kSuiteNumber.data());
  if (session == nullptr || suite == nullptr ||
      SSL_SESSION_set1_master_key(session.get(), Raw(key.bytes()), key.size()) != 1 ||
      SSL_SESSION_set_cipher(session.get(), suite) != 1 ||
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1)
    session.reset();
  return session;
}

/// The first reason in OpenSSL's queue, which is empty afterwards.
TlsFailure TakeFailure() {
  const unsigned long error = ERR_peek_error();
  ERR_clear_error();
  TlsFailure failure{.kind = TlsFailure::Kind::kBroken};
  if (const char* const text = ERR_reason_error_string(error)) failure.text = text;
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return failure;
  const int reason = ERR_GET_REASON(error);
  switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_BAD_PROTOCOL_VERSION_NUMBER:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_RECORD_TOO_SMALL:
      failure.kind = TlsFailure::Kind::kNotTls;
      break;
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      failure.kind = TlsFailure::Kind::kUnproven;
      break;
    default:
      if (reason < SSL_AD_REASON_OFFSET) break;
      failure.kind = TlsFailure::Kind::kAlert;
      failure.alert = reason - SSL_AD_REASON_OFFSET;
  }
  return failure;
}

}  // namespace

/// What OpenSSL calls.
struct TlsCallbacks {
  static const PreSharedKey& KeyOf(const SSL* ssl) {
    return static_cast<const TlsSession::State*>(SSL_get_app_data(ssl))->key;
  }
  static int Use(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* id_size, SSL_SESSION** session) {
    const PreSharedKey& key = KeyOf(ssl);
    *id = Raw(std::string_view(key.identity));
    *id_size = key.identity.size();
    *session = SessionOf(ssl, key.key).release();
    return *session != nullptr ? 1 : 0;
  }
  static int Find(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session) {
    const PreSharedKey& key = KeyOf(ssl);
    *session = nullptr;  // Another name than was looked at: no key, so no handshake.
    if (std::string_view(reinterpret_cast<const char*>(id), id_size) != key.identity) return 1;
    *session = SessionOf(ssl, key.key).release();
    return *session != nullptr ? 1 : 0;
  }
  /// `mine`: with its length in front, as on the wire.
  static int Choose(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned int offered_size, void* mine) {
    const auto& name = *static_cast<const std::string*>(mine);
    unsigned char* found = nullptr;
    const int outcome = SSL_select_next_proto(&found, chosen_size, Raw(std::string_view(name)),
                                              static_cast<unsigned int>(name.size()), offered, offered_size);
    *chosen = found;
    return outcome == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
  }
};

void TlsContext::FreeContext::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
void TlsSession::FreeSession::operator()(SSL* session) const { SSL_free(session); }

Result<TlsContext> TlsContext::Make(Side side, const std::string& protocol) {
  TlsContext made;
  made.shared_ = std::make_shared<Shared>();
  Shared& shared = *made.shared_;
  shared.side = side;
  shared.protocol = StrCat(static_cast<char>(protocol.size()), protocol);
  shared.context.reset(
      SSL_CTX_new_ex(Library(), nullptr, side == Side::kClient ? TLS_client_method() : TLS_server_method()));
  if (shared.context == nullptr) return NoMemory("TLS");
  WC_RETURN_IF_ERROR(Restrict(shared));
  return made;
}

/// Everything is set, also what is OpenSSL's default: a configuration of the process's may have changed that.
Status TlsContext::Restrict(Shared& shared) {
  SSL_CTX* const context = shared.context.get();
  SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT |
                                     SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_ALLOW_CLIENT_RENEGOTIATION);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_quiet_shutdown(context, 0);
  const bool set = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_ciphersuites(context, kSuite) == 1 &&
                   SSL_CTX_set1_groups_list(context, kGroup) == 1 &&
                   SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1 &&
                   SSL_CTX_set_recv_max_early_data(context, 0) == 1;
  if (!set) return NoMemory("TLS");
  if (shared.side == Side::kServer) {
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);  // It asks for no certificate.
    SSL_CTX_set_psk_find_session_callback(context, TlsCallbacks::Find);
    SSL_CTX_set_alpn_select_cb(context, TlsCallbacks::Choose, &shared.protocol);
    return Status::Ok();
  }
  SSL_CTX_set_psk_use_session_callback(context, TlsCallbacks::Use);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);  // Against an empty store: no certificate will do.
  // 0 is its success.
  if (SSL_CTX_set_alpn_protos(context, Raw(std::string_view(shared.protocol)),
                              static_cast<unsigned int>(shared.protocol.size())) != 0)
    return NoMemory("TLS");
  return Status::Ok();
}

Result<TlsSession> TlsSession::Begin(TlsContext context, PreSharedKey key) {
  auto state = std::make_unique<State>();
  state->context = std::move(context);
  state->key = std::move(key);
  SSL* const ssl = SSL_new(state->context.get());
  state->ssl.reset(ssl);
  if (ssl == nullptr) return NoMemory("a session");
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  if (in == nullptr || out == nullptr || SSL_set_app_data(ssl, state.get()) != 1) {
    BIO_free(in);
    BIO_free(out);
    return NoMemory("a session");
  }
  BIO_set_mem_eof_return(in, -1);  // Empty: more will come.
  SSL_set_bio(ssl, in, out);
  state->context.side() == TlsContext::Side::kClient ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
  return TlsSession(std::move(state));
}

Status TlsSession::Fail(TlsFailure failure) {
  state_->failure = std::move(failure);
  return Error(Code::kProtocol, "TLS: ", state_->failure.text,
               "; use the same weightcast on all hosts, and check the network");
}

/// Ok where OpenSSL only wants more bytes.
Status TlsSession::FailOf(int outcome) {
  switch (SSL_get_error(state_->ssl.get(), outcome)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return Status::Ok();
    case SSL_ERROR_ZERO_RETURN:
      state_->ended = true;
      return Status::Ok();
    default:
      return Fail(TakeFailure());
  }
}

Status TlsSession::Handshake() {
  SSL* const ssl = state_->ssl.get();
  if (const int outcome = SSL_do_handshake(ssl); outcome != 1) return FailOf(outcome);
  // Without the key a session could only rest on a certificate, and none is ever enough.
  if (SSL_session_reused(ssl) != 1)
    return Fail({.kind = TlsFailure::Kind::kUnproven, .text = "the other side has not used the key"});
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl, &protocol, &size);
  if (size == 0) return Fail({.kind = TlsFailure::Kind::kBroken, .text = "no protocol was agreed on"});
  state_->established = true;
  return Status::Ok();
}

Status TlsSession::Receive(std::string_view ciphertext, std::string& plaintext) {
  SSL* const ssl = state_->ssl.get();
  ERR_clear_error();
  size_t taken = 0;
  if (!ciphertext.empty() &&
      BIO_write_ex(SSL_get_rbio(ssl), ciphertext.data(), ciphertext.size(), &taken) != 1)
    return NoMemory("what came");
  if (!state_->established) {
    WC_RETURN_IF_ERROR(Handshake());
    if (!state_->established) return Status::Ok();
  }
  while (!state_->ended) {
    const size_t before = plaintext.size();
    plaintext.resize(before + kReadAtOnce);
    size_t got = 0;
    const int outcome = SSL_read_ex(ssl, plaintext.data() + before, kReadAtOnce, &got);
    plaintext.resize(before + got);
    if (outcome != 1) return FailOf(0);
  }
  return Status::Ok();
}

Status TlsSession::Send(std::string_view plaintext) {
  ERR_clear_error();
  size_t sent = 0;
  if (plaintext.empty()) return Status::Ok();
  if (SSL_write_ex(state_->ssl.get(), plaintext.data(), plaintext.size(), &sent) != 1 ||
      sent != plaintext.size())
    return Fail(TakeFailure());
  return Status::Ok();
}

void TlsSession::SendEnd() {
  ERR_clear_error();
  if (state_->established && state_->failure.kind == TlsFailure::Kind::kNone) SSL_shutdown(state_->ssl.get());
  ERR_clear_error();
}

void TlsSession::TakeOutput(std::string& out) {
  BIO* const bio = SSL_get_wbio(state_->ssl.get());
  const size_t pending = BIO_ctrl_pending(bio);
  if (pending == 0) return;
  const size_t before = out.size();
  out.resize(before + pending);
  size_t taken = 0;
  BIO_read_ex(bio, out.data() + before, pending, &taken);
  out.resize(before + taken);
}

Result<std::string> TlsSession::Exporter() const {
  std::string bytes(kExporterBytes, '\0');
  if (!state_->established ||
      SSL_export_keying_material(state_->ssl.get(), Writable(bytes), bytes.size(), kExporterLabel.data(),
                                 kExporterLabel.size(), nullptr, 0, 0) != 1)
    return NoMemory("an exporter");
  return bytes;
}

}  // namespace weightcast::stream
