// A process that has a token of the job, knows who is who, and wants an engine to serve what its trainers
// have not published.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "control/client.h"
#include "control/controller_stream.h"
#include "control/token.h"
#include "protocol/codec.h"
#include "protocol/identity.h"
#include "scratch_folder.h"
#include "system/jobs.h"
#include "weightcast/endpoint.h"

namespace weightcast::test {
namespace {

using testing::HasSubstr;

const protocol::WorkerName kTrainer{.role = protocol::Role::kTrainer, .engine = "", .rank = 0};

/// How often each token tries; WC_TEST_ATTEMPTS=200 tries harder.
int Attempts() {
  const char* wanted = std::getenv("WC_TEST_ATTEMPTS");
  return wanted == nullptr ? 12 : std::atoi(wanted);
}

/// What the controller has answered to one who came: its Welcome, and how the stream ended.
struct Answer {
  std::optional<protocol::Welcome> welcome;
  Status end;
};

class Impostor : public Job, public testing::Test {
 protected:
  void SetUp() override {
    settings_["token_file"] = folder_ + "/token";
    std::ofstream(settings_["token_file"]) << "7c1e90ab5f42d3866b0d9e8f1a27c435";
    std::filesystem::permissions(settings_["token_file"], std::filesystem::perms::owner_read);
    settings_["transport"] = "tcp";
    StartController();
    settings_["controller"] = controller_->address();
    std::thread other([&] { trainers_[1] = ConnectTrainer(1, 2); });
    trainers_[0] = ConnectTrainer(0, 2);
    other.join();
    engine_ = ConnectEngine("a");
    ASSERT_TRUE(trainers_[0] != nullptr && trainers_[1] != nullptr && engine_ != nullptr);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      weights_.emplace_back(SmallModel(DType::kBF16), Cut::kRows, rank, 2);
      ASSERT_TRUE(trainers_[rank]->Register({.shards = weights_[rank].shards()}).ok());
    }
    ASSERT_TRUE(engine_->Register({.shards = landed_.shards()}, {.landing = LandingMode::kShadow}).ok());
  }
  /// Both trainers publish it, and the engine serves it bit for bit.
  void Update(int64_t version) {
    std::vector<std::shared_ptr<weightcast::Update>> updates;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      weights_[rank].Fill(version);
      auto update = trainers_[rank]->Publish(version);
      ASSERT_TRUE(update.ok()) << update.status().ToString();
      updates.push_back(std::move(*update));
    }
    auto served = engine_->Wait(served_, In(60));
    ASSERT_TRUE(served.ok()) << served.status().ToString();
    served_ = *served;
    EXPECT_EQ(served_.number, version);
    for (const auto& update : updates) ASSERT_TRUE(update->Wait(In(60)).ok());
    EXPECT_EQ(landed_.Wrong(version), 0);
  }
  protocol::ClusterView View() {
    const auto view = control::GetView(*Settings::From(settings_), In(20));
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return view.ok() ? *view : protocol::ClusterView();
  }
  /// How this worker stands, once it is there.
  protocol::WorkerView Look(const protocol::WorkerName& name) {
    for (const TimePoint deadline = In(20); Clock::now() < deadline;) {
      for (const auto& model : View().models)
        for (const auto& worker : model.workers)
          if (model.model == kModel && worker.name == name && worker.alive) return worker;
    }
    ADD_FAILURE() << "there is no " << protocol::ToString(name);
    return {};
  }
  /// Of a process of its own, as this worker.
  protocol::Hello HelloOf(const protocol::WorkerName& name, uint32_t world_size = 1) const {
    protocol::Hello hello;
    hello.job = settings_.at("job");
    hello.model = kModel;
    hello.name = name;
    hello.world_size = world_size;
    hello.secret = protocol::NewSecret();
    hello.incarnation = protocol::IncarnationOf(hello.secret);
    hello.addresses = {"127.0.0.1:1"};
    hello.host = "impostor";
    return hello;
  }
  /// Comes with the token of this role; if it is welcomed it says `then`, and leaves.
  Answer Come(stream::Role role, const protocol::Hello& hello,
              const std::vector<protocol::WorkerMessage>& then = {}) {
    const auto token = control::LoadToken(*Settings::From(settings_))->ForWorker({.role = role});
    EXPECT_TRUE(token.ok()) << token.status().ToString();
    const auto link = std::make_shared<control::SessionLink>();
    link->PushUrgent(*control::MakePacket(protocol::WorkerMessage(hello)));
    const auto stream = std::move(*control::ControllerStream::Create());
    const Status begun =
        stream->Connect({.address = controller_->address(), .token = *token, .lease = FromSeconds(5)}, link);
    Answer answer{.welcome = std::nullopt, .end = begun};
    while (answer.end.ok()) {
      auto event = stream->Next(In(20));
      if (event.kind == control::ControllerStream::Event::Kind::kNone)
        answer.end = {Code::kTimedOut, "no answer"};
      if (event.kind == control::ControllerStream::Event::Kind::kClosed) answer.end = event.reason;
      if (event.kind != control::ControllerStream::Event::Kind::kMessage) continue;
      const auto message = protocol::DecodeControllerMessage(*control::Unpack(std::move(event.message)));
      EXPECT_TRUE(message.ok()) << message.status().ToString();
      if (const auto* refused = std::get_if<protocol::Refused>(&*message)) answer.end = refused->reason;
      if (!std::holds_alternative<protocol::Welcome>(*message)) continue;
      answer.welcome = std::get<protocol::Welcome>(*message);
      for (const auto& said : then) link->Push(*control::MakePacket(said));
      link->Push(*control::MakePacket(protocol::WorkerMessage(protocol::Leave{})));
      stream->Kick();
    }
    return answer;
  }
  /// Is never welcomed.
  void Refused(stream::Role role, const protocol::Hello& hello, const testing::Matcher<std::string>& why) {
    const Answer answer = Come(role, hello);
    EXPECT_FALSE(answer.welcome.has_value()) << protocol::ToString(hello.name);
    EXPECT_THAT(answer.end.message(), why) << protocol::ToString(hello.name);
  }
  /// Everything that a rank says of an update, and a source, for the updates that there can be.
  std::vector<protocol::WorkerMessage> Lies() {
    const auto view = View();
    std::vector<protocol::WorkerMessage> all;
    for (const auto& model : view.models) {
      for (uint64_t sequence = model.update.sequence; sequence < model.update.sequence + 3; ++sequence) {
        const protocol::UpdateId update{.term = view.term, .epoch = model.epoch, .sequence = sequence};
        all.emplace_back(protocol::Granted{.update = update, .grants = {{.source = 0, .slot = 1, .id = 7}}});
        all.emplace_back(protocol::Ready{.update = update, .bytes = 1, .seconds = 1, .sources = {}});
        all.emplace_back(protocol::Committed{.update = update});
        all.emplace_back(protocol::Serving{.update = update, .version = {.run = 1, .number = 9}});
        all.emplace_back(protocol::Aborted{.update = update, .lost = true, .landed = {}});
        all.emplace_back(protocol::SentDigests{.update = update, .destination = 0, .part = 0, .digests = {}});
        all.emplace_back(protocol::Failed{.update = update, .reason = {Code::kCorrupt, "a lie"}});
      }
    }
    return all;
  }
  /// A Hello that makes the controller begin another term.
  protocol::Hello Raising(protocol::Hello hello) {
    hello.term = {.number = View().term.number + 3, .id = 1};
    return hello;
  }
  /// Nothing has happened to the engine, and everybody is back in its own place.
  void ExpectNothing(int attempt) {
    EXPECT_EQ(Look(engine_name_).incarnation, engine_incarnation_) << attempt;
    EXPECT_EQ(Look(kTrainer).incarnation, trainer_incarnation_) << attempt;
    Look({.role = protocol::Role::kTrainer, .engine = "", .rank = 1});
    EXPECT_EQ(engine_->version(), served_) << attempt;
    EXPECT_EQ(landed_.Wrong(served_.number), 0) << attempt;
  }
  void Begin() {
    ASSERT_NO_FATAL_FAILURE(Update(1));
    engine_incarnation_ = Look(engine_name_).incarnation;
    trainer_incarnation_ = Look(kTrainer).incarnation;
  }
  /// An endpoint that says it is this worker, with what every member has.
  std::unique_ptr<Endpoint> Pose(const protocol::WorkerView& as) {
    EndpointOptions options;
    options.settings = *Settings::From(settings_);
    options.token = control::LoadToken(options.settings)->text();
    options.self = protocol::IdentityOf(settings_["job"], as.name, as.incarnation);
    auto made = Endpoint::Create(std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? std::move(*made) : nullptr;
  }

  static constexpr const char* kModel = "policy";
  const protocol::WorkerName engine_name_{.role = protocol::Role::kInference, .engine = "a", .rank = 0};
  const test::ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  std::unique_ptr<Trainer> trainers_[2];
  std::unique_ptr<Inference> engine_;
  std::vector<Weights> weights_;
  Version served_;
  uint64_t engine_incarnation_ = 0;
  uint64_t trainer_incarnation_ = 0;
  Weights landed_{SmallModel(DType::kBF16), Cut::kWhole, 0, 1};
};

TEST_F(Impostor, WithAnInferenceTokenNothingIsCommitted) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  constexpr auto kRole = stream::Role::kInference;
  const protocol::WorkerName own{.role = protocol::Role::kInference, .engine = "x", .rank = 0};
  for (int i = 0; i < Attempts() && !HasFailure(); ++i) {
    protocol::Hello hello = HelloOf(engine_name_);
    switch (i % 6) {
      case 0:  // A trainer.
        Refused(kRole, HelloOf(kTrainer, 2), HasSubstr("the token of trainer 0 is for inference"));
        break;
      case 1:  // The engine itself, by what everybody knows of it.
        hello.incarnation = engine_incarnation_;
        Refused(kRole, hello, HasSubstr("does not prove its identity"));
        break;
      case 2:  // Another process of the engine, from the future.
        Refused(kRole, Raising(hello), HasSubstr("rank taken"));
        break;
      case 3:  // An engine of its own, that speaks of the updates of others.
        EXPECT_TRUE(Come(kRole, HelloOf(own), Lies()).welcome.has_value());
        break;
      case 4:  // The same as a source.
        EXPECT_THAT(Come(kRole, HelloOf(own), {protocol::Published{.number = 9}}).end.message(),
                    HasSubstr("a message that its role does not send"));
        break;
      default:  // Throws all out, to be the first that comes back as the engine.
        EXPECT_TRUE(Come(kRole, Raising(HelloOf(own))).welcome.has_value());
        EXPECT_FALSE(Come(kRole, hello).welcome.has_value());
    }
    ExpectNothing(i);
  }
  Update(2);
}

TEST_F(Impostor, WithAnotherTrainersTokenNothingIsCommitted) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  constexpr auto kRole = stream::Role::kTrainer;
  for (int i = 0; i < Attempts() && !HasFailure(); ++i) {
    protocol::Hello hello = HelloOf(kTrainer, 2);
    protocol::Hello elsewhere = HelloOf(kTrainer);
    elsewhere.model = "another";
    switch (i % 6) {
      case 0:  // The engine.
        Refused(kRole, HelloOf(engine_name_), HasSubstr(" is for trainer, which is another role or engine"));
        break;
      case 1:  // The other trainer, by what everybody knows of it.
        hello.incarnation = trainer_incarnation_;
        Refused(kRole, hello, HasSubstr("does not prove its identity"));
        break;
      case 2:  // Another process of that trainer, from the future.
        Refused(kRole, Raising(hello), HasSubstr("rank taken"));
        break;
      case 3:  // A third trainer.
        hello = HelloOf({.role = protocol::Role::kTrainer, .engine = "", .rank = 2}, 3);
        Refused(kRole, hello, HasSubstr("world_size"));
        break;
      case 4: {  // A trainer of another model, that speaks of this one.
        auto lies = Lies();
        std::erase_if(lies, [](const auto& lie) {
          return !std::holds_alternative<protocol::SentDigests>(lie) &&
                 !std::holds_alternative<protocol::Failed>(lie);
        });
        lies.emplace_back(protocol::Published{.number = 9, .run = {.number = 1}, .hold = true});
        EXPECT_TRUE(Come(kRole, elsewhere, lies).welcome.has_value());
        break;
      }
      default:  // Throws all out, to be the first that comes back as the other trainer.
        EXPECT_TRUE(Come(kRole, Raising(elsewhere)).welcome.has_value());
        EXPECT_FALSE(Come(kRole, hello).welcome.has_value());
    }
    ExpectNothing(i);
  }
  Update(2);
}

TEST_F(Impostor, NobodyWritesIntoAnEngineAsAnother) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const auto target = Look(engine_name_);
  const Identity engine = protocol::IdentityOf(settings_["job"], target.name, target.incarnation);
  // A live trainer, one that says another number of itself, and an engine.
  auto strange = Look(kTrainer);
  strange.name.rank = 1;
  strange.incarnation += 1;
  auto other_engine = target;
  other_engine.name.engine = "b";
  other_engine.incarnation += 1;
  for (const auto& claimed : {Look(kTrainer), strange, other_engine}) {
    const auto impostor = Pose(claimed);
    ASSERT_NE(impostor, nullptr);
    for (int i = 0; i < Attempts(); ++i) {
      const Status status = impostor->Connect(target.addresses, engine, In(20)).status();
      ASSERT_EQ(status.code(), Code::kPermission) << i << ": " << status.ToString();
      ASSERT_THAT(status.message(), HasSubstr("does not have the key"));
    }
  }
  Update(2);
}

}  // namespace
}  // namespace weightcast::test
