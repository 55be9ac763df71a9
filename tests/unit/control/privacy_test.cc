// What those learn and reach who have no token, or another's: recorders, impostors, wrong tokens and roles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "control/controller_stream.h"
#include "control/envelope.h"
#include "protocol/codec.h"
#include "protocol/identity.h"
#include "scratch_folder.h"
#include "stream/connection.h"
#include "stream/encoding.h"
#include "stream/frame.h"
#include "unit/control/puppet.h"
#include "unit/stream/fixture.h"

namespace weightcast::control {
namespace {

using stream::kMaster;
using stream::kOtherMaster;
using stream::kTrainerMember;
using stream::Member;
using stream::Purpose;
using ::testing::HasSubstr;

/// How often each attack is tried; WC_TEST_ATTEMPTS=200 tries harder.
int Attempts() {
  const char* wanted = std::getenv("WC_TEST_ATTEMPTS");
  return wanted == nullptr ? 20 : std::atoi(wanted);
}

const Member kEngineA{.role = stream::Role::kInference, .engine = "a"};

class Privacy : public ::testing::Test {
 protected:
  void SetUp() override {
    settings_ = {{"token_file", Write("master", kMaster)}};
    auto started = Controller::Start({.listen = "127.0.0.1:0", .settings = settings_});
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    controller_ = std::move(*started);
  }
  std::string Write(const std::string& name, std::string_view token) {
    const std::string path = StrCat(folder_, "/", name);
    std::ofstream(path) << token;
    std::filesystem::permissions(path,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return path;
  }
  Puppet::Options OptionsWith(const std::string& token_file) {
    Puppet::Options options;
    options.address = controller_->address();
    options.name = TrainerOf(0);
    options.settings = {{"token_file", token_file}};
    return options;
  }
  Result<protocol::ClusterView> View() {
    auto settings = settings_;
    settings["controller"] = controller_->address();
    return GetView(*Settings::From(settings), Clock::now() + kPatience);
  }
  /// Nobody was ever believed.
  void ExpectNobody() {
    const auto view = View();
    ASSERT_TRUE(view.ok()) << view.status().ToString();
    EXPECT_TRUE(view->models.empty());
  }

  const test::ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  std::map<std::string, std::string> settings_;
  std::unique_ptr<Controller> controller_;
};

/// Says Hello as `name` over a stream with this token, whatever the token is for; what the controller
/// answers.
Result<protocol::ControllerMessage> Greet(const std::string& address, const stream::RoleToken& token,
                                          const protocol::WorkerName& name,
                                          std::optional<Incarnation> claimed = std::nullopt) {
  protocol::Hello hello;
  hello.job = "default";
  hello.model = "policy";
  hello.name = name;
  hello.world_size = 1;
  hello.secret = protocol::NewSecret();
  hello.incarnation = claimed.value_or(protocol::IncarnationOf(hello.secret));
  const auto link = std::make_shared<SessionLink>();
  link->PushUrgent(*MakePacket(protocol::WorkerMessage(hello)));
  const auto stream = std::move(*ControllerStream::Create());
  WC_RETURN_IF_ERROR(stream->Connect({.address = address, .token = token, .lease = kPatience}, link));
  const TimePoint deadline = Clock::now() + kPatience;
  while (true) {
    auto event = stream->Next(deadline);
    if (event.kind == ControllerStream::Event::Kind::kNone) return Status(Code::kTimedOut, "no answer");
    if (event.kind == ControllerStream::Event::Kind::kClosed) return event.reason;
    if (event.kind != ControllerStream::Event::Kind::kMessage) continue;
    WC_ASSIGN_OR_RETURN(const std::string encoded, Unpack(std::move(event.message)));
    return protocol::DecodeControllerMessage(encoded);
  }
}

TEST_F(Privacy, ARecordingOfTheControlPortHasNoTokenNoKeyAndNoMessage) {
  const std::string secret_name = "tensor-that-nobody-else-may-know";
  std::string recorded;
  {
    stream::Recorder recorder(*SocketAddress::Parse(controller_->address()));
    Puppet::Options options = OptionsWith(settings_["token_file"]);
    options.address = recorder.address();
    options.shards = {{.tensor = {.name = secret_name, .dtype = DType::kF32, .shape = {256, 4}},
                       .box = {.offset = {0, 0}, .size = {256, 4}},
                       .declared = false}};
    {
      Puppet trainer(options);
      ASSERT_TRUE(trainer.WaitConnected());
      trainer.client().Leave(Clock::now() + kPatience);  // All that it says has gone out.
    }
    recorder.Join();
    recorded = recorder.sent[0] + recorder.sent[1];
  }
  ASSERT_GT(recorded.size(), 1000U);
  // The names that a key has in clear are there, so what was sent was recorded.
  EXPECT_THAT(recorded, HasSubstr("trainer"));
  const stream::MasterToken master = stream::Master();
  for (const Purpose purpose : {Purpose::kControl, Purpose::kObserve, Purpose::kQueue, Purpose::kPeers}) {
    const std::string key(master.Key(purpose, kTrainerMember).bytes());
    EXPECT_EQ(recorded.find(key), std::string::npos);
    EXPECT_EQ(recorded.find(stream::ToBase64(key)), std::string::npos);
  }
  for (const std::string_view word : {kMaster, std::string_view(secret_name), std::string_view("policy"),
                                      std::string_view("127.0.0.1:1"), std::string_view("default")})
    EXPECT_EQ(recorded.find(word), std::string::npos) << word;
}

TEST_F(Privacy, AWrongTokenIsNeverBelieved) {
  const stream::RoleToken wrong = stream::TokenOf(kTrainerMember, kOtherMaster);
  for (int i = 0; i < Attempts(); ++i)
    ASSERT_EQ(Greet(controller_->address(), wrong, TrainerOf(0)).status().code(), Code::kPermission) << i;
  ExpectNobody();
  // The same with the right one.
  const auto answer = Greet(controller_->address(), stream::TokenOf(kTrainerMember), TrainerOf(0));
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_TRUE(std::holds_alternative<protocol::Welcome>(*answer));
}

TEST_F(Privacy, ATokenOfAnotherRoleOrEngineIsNeverBelieved) {
  const Member inference{.role = stream::Role::kInference};
  const std::pair<Member, protocol::WorkerName> wrong[] = {{kEngineA, TrainerOf(0)},
                                                           {kEngineA, RankOf("b")},
                                                           {kTrainerMember, RankOf("a")},
                                                           {inference, TrainerOf(0)}};
  for (int i = 0; i < Attempts(); ++i) {
    const auto& [member, name] = wrong[i % 4];
    const auto answer = Greet(controller_->address(), stream::TokenOf(member), name);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    const auto* refused = std::get_if<protocol::Refused>(&*answer);
    ASSERT_NE(refused, nullptr) << i;
    ASSERT_EQ(refused->reason.code(), Code::kPermission);
    ASSERT_THAT(refused->reason.message(), HasSubstr(stream::MemberText(member)));
  }
  ExpectNobody();
  for (const auto& [member, name] : {std::pair(kEngineA, RankOf("a")), std::pair(inference, RankOf("b")),
                                     std::pair(kTrainerMember, TrainerOf(0))}) {
    const auto answer = Greet(controller_->address(), stream::TokenOf(member), name);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_TRUE(std::holds_alternative<protocol::Welcome>(*answer)) << stream::MemberText(member);
  }
}

TEST_F(Privacy, AnIncarnationWithoutItsSecretIsNeverBelieved) {
  Puppet trainer(OptionsWith(settings_["token_file"]));
  ASSERT_TRUE(trainer.WaitConnected());
  const auto before = View();
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  const Incarnation live = before->models.at(0).workers.at(0).incarnation;
  for (int i = 0; i < Attempts(); ++i) {
    const auto answer = Greet(controller_->address(), stream::TokenOf(kTrainerMember), TrainerOf(0), live);
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    const auto* refused = std::get_if<protocol::Refused>(&*answer);
    ASSERT_NE(refused, nullptr) << i;
    ASSERT_EQ(refused->reason.code(), Code::kPermission);
    ASSERT_THAT(refused->reason.message(), HasSubstr("trainer 0 does not prove its identity"));
  }
  const auto after = View();
  ASSERT_TRUE(after.ok()) << after.status().ToString();
  EXPECT_EQ(after->models.at(0).workers.at(0).incarnation, live);
  EXPECT_TRUE(after->models.at(0).workers.at(0).alive);
}

TEST_F(Privacy, ARoleTokenDoesItsPartAndNoOther) {
  const auto text = [](const Member& member) { return std::string(stream::TokenOf(member).Print().bytes()); };
  auto settings = settings_;
  settings["controller"] = controller_->address();
  settings["token_file"] = Write("engine-a", text(kEngineA));
  EXPECT_TRUE(GetView(*Settings::From(settings), Clock::now() + kPatience).ok());
  ClientOptions client;
  client.settings = *Settings::From(settings);
  client.hello.name = RankOf("b");
  const Status other = ControlClient::Start(std::move(client)).status();
  EXPECT_EQ(other.code(), Code::kPermission);
  EXPECT_THAT(other.message(), HasSubstr("is for inference/a, this process is inference/b"));

  settings["token_file"] = Write("observer", text({.role = stream::Role::kObserver}));
  EXPECT_TRUE(GetView(*Settings::From(settings), Clock::now() + kPatience).ok());
  settings["token_file"] = Write("peer", text({.role = stream::Role::kPeer}));
  EXPECT_EQ(GetView(*Settings::From(settings), Clock::now() + kPatience).status().code(), Code::kPermission);
  EXPECT_EQ(Controller::Start(
                {.listen = "127.0.0.1:0", .settings = {{"token_file", Write("x", text(kTrainerMember))}}})
                .status()
                .code(),
            Code::kPermission);

  Puppet trainer(OptionsWith(Write("trainer", text(kTrainerMember))));
  EXPECT_TRUE(trainer.WaitConnected());
}

TEST_F(Privacy, AWeakTokenStartsNothing) {
  for (int i = 0; i < Attempts(); ++i) {
    const std::string weak = std::string(kMaster.substr(static_cast<size_t>(i) % 8, 30 - i % 16));
    const std::string path = Write("weak", weak);
    const auto started = Controller::Start({.listen = "127.0.0.1:0", .settings = {{"token_file", path}}});
    ASSERT_EQ(started.status().code(), Code::kInvalidArgument) << weak;
    ClientOptions client;
    client.settings = *Settings::From({{"token_file", path}, {"controller", controller_->address()}});
    ASSERT_EQ(ControlClient::Start(std::move(client)).status().code(), Code::kInvalidArgument) << weak;
  }
  ExpectNobody();
}

/// Has the key of the worker who connects, as another worker of that role has, and says that it is the
/// controller.
void Pose(UniqueFd fd, const stream::RoleToken& token) {
  const stream::ClientKeys keys = *stream::ClientKeysOf(token, Purpose::kControl, protocol::kProtocolVersion);
  stream::Connection connection(
      std::move(fd), stream::ServerSession(keys.identity, keys.key, protocol::kProtocolVersion), 1 << 20);
  const TimePoint deadline = Clock::now() + kPatience;
  while (!connection.tls().established() && connection.end().ok() && Clock::now() < deadline) {
    if (WaitFor(connection.fd(), POLLIN, deadline)) connection.Read();
    if (!connection.Flush().ok()) return;
  }
  const std::string welcome =
      protocol::Encode(protocol::ControllerMessage(protocol::Welcome{.term = {.number = 1, .id = 1}}));
  (void)connection.Queue(stream::FrameKind::kProof, std::string(stream::kSignatureBytes, 's'));
  (void)connection.Queue(stream::FrameKind::kData, Enclose(Envelope{.session = 1}, welcome));
  (void)connection.Flush();
  connection.End();
  stream::ReceiveToEnd(connection.fd());
}

TEST_F(Privacy, AnImpostorIsNeverTakenForTheController) {
  const stream::TestListener listener;
  std::thread impostor([&] {
    for (UniqueFd fd = listener.AcceptOne(); fd.valid(); fd = listener.AcceptOne())
      Pose(std::move(fd), stream::TokenOf(kTrainerMember));
  });
  int posed = 0;
  for (int i = 0; i < Attempts(); ++i) {
    Puppet::Options options = OptionsWith(settings_["token_file"]);
    options.address = listener.address();
    Puppet worker(options);
    ASSERT_TRUE(worker.WaitEnded());
    ASSERT_EQ(worker.end().code(), Code::kPermission) << worker.end().ToString();
    ASSERT_EQ(worker.welcomes(), 0U);
    posed += worker.end().message().find("does not prove to be the controller") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(posed, Attempts()) << "the impostor was not reached";
  ::shutdown(listener.fd.get(), SHUT_RDWR);
  impostor.join();
}

TEST_F(Privacy, AnotherVersionIsToldThatItIsOne) {
  const auto client = std::move(*stream::ClientStream::Create());
  const Status status =
      stream::ConnectStream(*client, controller_->address(), stream::TokenOf(kTrainerMember),
                            Purpose::kObserve, protocol::kProtocolVersion + 1);
  EXPECT_EQ(status.code(), Code::kProtocol);
  EXPECT_THAT(status.message(), HasSubstr("another version"));
}

}  // namespace
}  // namespace weightcast::control
