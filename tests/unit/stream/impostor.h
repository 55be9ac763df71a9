#pragma once

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "fixture.h"

/// Other people's TLS, straight from OpenSSL: what a stranger can write without a key of the job.
namespace weightcast::stream {

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;

inline int TakeAnyProtocol(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* in,
                           unsigned int, void*) {
  *out = in + 1;
  *size = in[0];
  return SSL_TLSEXT_ERR_OK;
}

/// A server with a certificate that it has signed itself; no key of ours.
inline Context SelfSignedServer(int version = TLS1_3_VERSION) {
  Context context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  EVP_PKEY* const key = EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
  X509* const certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("weightcast"), -1, -1, 0);
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  EXPECT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
  EXPECT_EQ(SSL_CTX_use_certificate(context.get(), certificate), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context.get(), key), 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
  SSL_CTX_set_min_proto_version(context.get(), version);
  SSL_CTX_set_max_proto_version(context.get(), version);
  SSL_CTX_set_alpn_select_cb(context.get(), TakeAnyProtocol, nullptr);
  return context;
}

/// Talks to one of our sessions from memory to memory until both are silent. True if it took us for one of
/// its own.
inline bool TalkTo(TlsSession& ours, SSL* theirs) {
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(theirs, in, out);
  std::string plaintext;
  Status status = ours.Receive("", plaintext);
  for (int round = 0; round < 8; ++round) {
    std::string bytes;
    ours.TakeOutput(bytes);
    if (!bytes.empty()) BIO_write(in, bytes.data(), static_cast<int>(bytes.size()));
    SSL_do_handshake(theirs);
    bytes.resize(BIO_ctrl_pending(out));
    if (!bytes.empty()) BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
    if (status.ok() && !bytes.empty()) status = ours.Receive(bytes, plaintext);
  }
  return SSL_is_init_finished(theirs) != 0;
}

}  // namespace weightcast::stream
