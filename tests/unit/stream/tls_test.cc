#include "stream/tls.h"

#include <openssl/bio.h>

#include "fixture.h"
#include "impostor.h"
#include "stream/proof.h"
#include "unit/stream/use_key.h"

namespace weightcast::stream {
namespace {

/// A client and a server that have met.
struct Met {
  Met()
      : client(ClientSession(TrainerKeys())),
        server(ServerSession(TrainerKeys().identity, TrainerKeys().key)) {
    Shuttle(client, server);
  }
  TlsSession client;
  TlsSession server;
};

TEST(TlsSession, WithOneKeyTalks) {
  Met met;
  ASSERT_TRUE(met.client.established() && met.server.established());
  EXPECT_EQ(*met.client.Exporter(), *met.server.Exporter());
  std::string bytes;
  std::string plaintext;
  ASSERT_TRUE(met.client.Send("the weights are ready").ok());
  met.client.TakeOutput(bytes);
  EXPECT_EQ(bytes.find("weights"), std::string::npos);
  ASSERT_TRUE(met.server.Receive(bytes, plaintext).ok());
  EXPECT_EQ(plaintext, "the weights are ready");
  EXPECT_NE(*Met().client.Exporter(), *met.client.Exporter()) << "each session has its own";
}

TEST(TlsSession, TellsOfTheEnd) {
  Met met;
  std::string bytes;
  std::string plaintext;
  met.server.SendEnd();
  met.server.TakeOutput(bytes);
  EXPECT_TRUE(met.client.Receive(bytes, plaintext).ok());
  EXPECT_TRUE(met.client.ended());
}

TEST(TlsSession, WithAnotherKeyFails) {
  for (int i = 0; i < kMany; ++i) {
    TlsSession client = ClientSession(TrainerKeys());
    TlsSession server =
        ServerSession(TrainerKeys().identity, Master(kOtherMaster).Key(Purpose::kControl, {Role::kTrainer}));
    Shuttle(client, server);
    ASSERT_FALSE(client.established());
    ASSERT_FALSE(server.established());
    ASSERT_EQ(client.failure().kind, TlsFailure::Kind::kAlert);
  }
}

TEST(TlsSession, WithAnotherNameOfTheKeyFails) {
  TlsSession client = ClientSession(TrainerKeys());
  TlsSession server = ServerSession("weightcast/7:observer:0123456789abcdef", TrainerKeys().key);
  Shuttle(client, server);
  EXPECT_FALSE(client.established());
  EXPECT_FALSE(server.established());
}

TEST(TlsSession, WithAnotherVersionFails) {
  TlsSession client = ClientSession(TrainerKeys(), 8);
  TlsSession server = ServerSession(TrainerKeys().identity, TrainerKeys().key, 7);
  Shuttle(client, server);
  EXPECT_FALSE(client.established());
  EXPECT_EQ(client.failure().alert, static_cast<int>(Alert::kNoProtocol));
}

TEST(TlsSession, RefusesASelfSignedCertificate) {
  const Context context = SelfSignedServer();
  for (int i = 0; i < kMany; ++i) {
    TlsSession client = ClientSession(TrainerKeys());
    const Session impostor(SSL_new(context.get()), &SSL_free);
    SSL_set_accept_state(impostor.get());
    ASSERT_FALSE(TalkTo(client, impostor.get()));
    ASSERT_FALSE(client.established());
    ASSERT_EQ(client.failure().kind, TlsFailure::Kind::kUnproven) << client.failure().text;
  }
}

TEST(TlsSession, RefusesAnOlderTls) {
  const Context context = SelfSignedServer(TLS1_2_VERSION);
  for (int i = 0; i < kMany; ++i) {
    TlsSession client = ClientSession(TrainerKeys());
    const Session impostor(SSL_new(context.get()), &SSL_free);
    SSL_set_accept_state(impostor.get());
    ASSERT_FALSE(TalkTo(client, impostor.get()));
    ASSERT_FALSE(client.established());
  }
}

/// Who has the key and everything else, but one thing of the handshake.
struct Strange {
  const char* suites = "TLS_AES_128_GCM_SHA256";
  const char* groups = "X25519";
  int version = TLS1_3_VERSION;
};

/// Whether our server takes such a client.
bool ServerTakes(const Strange& strange) {
  const Context context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_set_psk_use_session_callback(context.get(), UseTrainerKey);
  SSL_CTX_set_ciphersuites(context.get(), strange.suites);
  SSL_CTX_set1_groups_list(context.get(), strange.groups);
  SSL_CTX_set_min_proto_version(context.get(), strange.version);
  SSL_CTX_set_max_proto_version(context.get(), strange.version);
  constexpr unsigned char kAlpn[] = "\x0cweightcast/7";
  SSL_CTX_set_alpn_protos(context.get(), kAlpn, sizeof kAlpn - 1);
  const Session client(SSL_new(context.get()), &SSL_free);
  SSL_set_connect_state(client.get());
  TlsSession server = ServerSession(TrainerKeys().identity, TrainerKeys().key);
  const bool taken = TalkTo(server, client.get());
  return taken && server.established();
}

TEST(TlsSession, OfAServerTakesOneSuiteAndOneGroup) {
  ASSERT_TRUE(ServerTakes({})) << "else this test says nothing";
  EXPECT_FALSE(ServerTakes({.suites = "TLS_AES_256_GCM_SHA384"}));
  EXPECT_FALSE(ServerTakes({.suites = "TLS_CHACHA20_POLY1305_SHA256"}));
  EXPECT_FALSE(ServerTakes({.groups = "P-256"}));
  EXPECT_FALSE(ServerTakes({.version = TLS1_2_VERSION}));
}

TEST(TlsSession, RefusesBytesOfSomethingElse) {
  for (const std::string_view answer :
       {"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "\x16\x03\x01"}) {
    TlsSession client = ClientSession(TrainerKeys());
    std::string plaintext;
    ASSERT_TRUE(client.Receive("", plaintext).ok());
    (void)client.Receive(answer, plaintext);
    EXPECT_FALSE(client.established());
    EXPECT_TRUE(plaintext.empty());
  }
}

TEST(TlsSession, RefusesChangedBytes) {
  Met met;
  std::string bytes;
  std::string plaintext;
  ASSERT_TRUE(met.client.Send("message").ok());
  met.client.TakeOutput(bytes);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  EXPECT_EQ(met.server.Receive(bytes, plaintext).code(), Code::kProtocol);
  EXPECT_TRUE(plaintext.empty());
}

TEST(ControllersProof, IsOfOneSessionAndOneController) {
  const Met met;
  const std::string controller = Master().Controller().public_key();
  const std::string proof = *ProveController(met.server, Master().Controller());
  EXPECT_TRUE(CheckController(met.client, controller, proof).ok());
  const Met other;
  EXPECT_EQ(CheckController(other.client, controller, proof).code(), Code::kPermission) << "replayed";
  EXPECT_EQ(CheckController(met.client, controller, "").code(), Code::kPermission);
  const std::string forged = *ProveController(met.server, Master(kOtherMaster).Controller());
  EXPECT_EQ(CheckController(met.client, controller, forged).code(), Code::kPermission);
}

}  // namespace
}  // namespace weightcast::stream
