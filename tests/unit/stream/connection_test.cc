#include "stream/connection.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "unit/stream/fixture.h"
#include "unit/stream/impostor.h"
#include "unit/stream/use_key.h"

namespace weightcast::stream {
namespace {

/// A member that uses OpenSSL as it likes.
Context MemberWithAKey() {
  Context context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_psk_use_session_callback(context.get(), UseTrainerKey);
  const std::string name = ProtocolName(kVersion);
  const std::string wire = std::string(1, static_cast<char>(name.size())) + name;
  SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const unsigned char*>(wire.data()),
                          static_cast<unsigned int>(wire.size()));
  return context;
}

/// What the member has to say now.
std::string TakeFrom(BIO* out) {
  std::string bytes(BIO_ctrl_pending(out), '\0');
  if (!bytes.empty()) BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

/// OpenSSL answers each request for new keys at once, whether the answers are read or not.
TEST(Connection, EndsWithWhoAsksForNewKeysAndDoesNotRead) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd theirs(ends[1]);
  Connection connection(UniqueFd{ends[0]}, ServerSession(TrainerKeys().identity, TrainerKeys().key),
                        size_t{1} << 20);
  const Context context = MemberWithAKey();
  const Session member(SSL_new(context.get()), &SSL_free);
  SSL_set_connect_state(member.get());
  BIO* const in = BIO_new(BIO_s_mem());
  BIO* const out = BIO_new(BIO_s_mem());
  SSL_set_bio(member.get(), in, out);
  for (int round = 0; round < 4; ++round) {
    SSL_do_handshake(member.get());
    connection.Take(TakeFrom(out));
    ASSERT_TRUE(connection.Flush().ok());
    char bytes[4096];
    const ssize_t got = ::recv(theirs.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) BIO_write(in, bytes, static_cast<int>(got));
  }
  ASSERT_TRUE(connection.tls().established());
  int asked = 0;
  for (; asked < 100'000 && connection.end().ok(); ++asked) {
    ASSERT_EQ(SSL_key_update(member.get(), SSL_KEY_UPDATE_REQUESTED), 1);
    SSL_do_handshake(member.get());
    connection.Take(TakeFrom(out));
  }
  EXPECT_EQ(connection.end().code(), Code::kExhausted) << connection.end().ToString();
  EXPECT_GT(asked, 1000) << "a few are fine";
}

}  // namespace
}  // namespace weightcast::stream
