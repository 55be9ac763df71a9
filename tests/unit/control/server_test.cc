#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/socket.h"
#include "scratch_folder.h"
#include "unit/control/cuttable_proxy.h"
#include "unit/control/puppet.h"
#include "unit/control/tokens.h"

namespace weightcast::control {
namespace {

using ::testing::HasSubstr;

/// Whether the last attempt was refused, in time.
bool WaitRefused(Puppet& puppet) {
  const TimePoint deadline = Clock::now() + kPatience;
  while (puppet.absence().Told().message().find("does not know this token") == std::string::npos) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A controller on a free loopback port, and a token of the test's own.
class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1); }
  void TearDown() override {
    puppets_.clear();
    controller_.reset();
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  void Start(std::map<std::string, std::string> settings = {}) {
    auto started = Controller::Start({.listen = "127.0.0.1:0", .settings = std::move(settings)});
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    controller_ = std::move(*started);
  }
  Puppet& Add(protocol::WorkerName name, uint32_t world_size, Puppet::Options options = {}) {
    options.name = std::move(name);
    options.world_size = world_size;
    if (options.address.empty()) options.address = controller_->address();
    return *puppets_.emplace_back(std::make_unique<Puppet>(std::move(options)));
  }
  static protocol::Term TermOf(const Controller& controller) {
    const auto view =
        GetView(*Settings::From({{"controller", controller.address()}}), Clock::now() + kPatience);
    EXPECT_TRUE(view.ok()) << view.status().ToString();
    return view.ok() ? view->term : protocol::Term();
  }
  Settings ClientSettings() { return *Settings::From({{"controller", controller_->address()}}); }

  const test::ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  std::unique_ptr<Controller> controller_;
  std::vector<std::unique_ptr<Puppet>> puppets_;
};

TEST_F(ServerTest, OneUpdateOverTheNetwork) {
  Start();
  Puppet& trainer = Add(TrainerOf(0), 1);
  Puppet& rank = Add(RankOf("a"), 1);
  ASSERT_TRUE(trainer.Publish(1));
  ASSERT_TRUE(rank.WaitServed(1));
  ASSERT_TRUE(trainer.WaitDone(1));
  const protocol::Done done = trainer.done()[0];
  EXPECT_TRUE(done.met_policy);
  EXPECT_EQ(done.receivers.at(0).bytes, 4096U);
  EXPECT_GT(done.seconds, 0) << "the shell fills in what the machine cannot know";
  EXPECT_LT(done.seconds, 20);
}

TEST_F(ServerTest, AnObserverIsToldWhatUpdatesTook) {
  Start();
  Puppet& trainer = Add(TrainerOf(0), 1);
  Puppet& rank = Add(RankOf("a"), 1);
  const auto ask = [&](protocol::AskUpdates question) {
    const auto json = GetUpdates(ClientSettings(), question, Clock::now() + kPatience);
    EXPECT_TRUE(json.ok()) << json.status().ToString();
    return json.ok() ? *json : std::string();
  };
  EXPECT_EQ(ask({.model = {}}), "[]");
  for (const int64_t number : {1, 2}) {
    ASSERT_TRUE(trainer.Publish(number));
    ASSERT_TRUE(rank.WaitServed(number));
    ASSERT_TRUE(trainer.WaitDone(static_cast<size_t>(number)));
  }
  const std::string last = ask({.model = {}});
  EXPECT_THAT(last, HasSubstr(R"("version":2)"));
  EXPECT_THAT(last, HasSubstr(R"("step":"serve","worker":"engine a rank 0")"));
  EXPECT_EQ(last.find(R"("version":1)"), std::string::npos);
  EXPECT_THAT(ask({.model = {}, .number = 1}), HasSubstr(R"("version":1)"));
  EXPECT_EQ(ask({.model = "another"}), "[]");
  EXPECT_EQ(GetUpdates(ClientSettings(), {.model = {}}, Clock::now() + kPatience, [] { return true; })
                .status()
                .code(),
            Code::kCancelled);
}

TEST_F(ServerTest, SixtyFourWorkersAndFiveVersions) {
  Start({{"min_engines", "32"}});
  for (uint32_t i = 0; i < 32; ++i) {
    Add(TrainerOf(i), 32);
    Add(RankOf(StrCat("engine-", i)), 1);
  }
  for (int64_t number = 1; number <= 5; ++number) {
    for (size_t i = 0; i < puppets_.size(); i += 2) ASSERT_TRUE(puppets_[i]->Publish(number));
    for (size_t i = 0; i < puppets_.size(); i += 2)
      ASSERT_TRUE(puppets_[i]->WaitDone(static_cast<size_t>(number))) << "trainer " << i / 2;
    for (size_t i = 1; i < puppets_.size(); i += 2) EXPECT_EQ(puppets_[i]->served().number, number);
  }
  EXPECT_EQ(puppets_[0]->done().back().engines.size(), 32U);
}

TEST_F(ServerTest, LargeRegistrationsAndTablesTravelInPieces) {
  Start();
  std::vector<protocol::ShardInfo> shards;
  for (int i = 0; i < 20000; ++i) {
    const Shape shape = {1 + i % 7, 8};
    shards.push_back({.tensor = {.name = StrCat("model.layers.", i, ".mlp.experts.weight"),
                                 .dtype = DType::kBF16,
                                 .shape = shape},
                      .box = {.offset = {0, 0}, .size = shape},
                      .declared = false});
  }
  Puppet::Options options;
  options.shards = shards;
  Puppet& trainer = Add(TrainerOf(0), 1, options);
  Puppet& rank = Add(RankOf("a"), 1, options);
  ASSERT_TRUE(trainer.Publish(1));
  ASSERT_TRUE(rank.WaitServed(1));
}

TEST_F(ServerTest, AWrongTokenEndsAtOnceAndSaysSo) {
  std::ofstream(folder_ + "/one") << kFirstToken;
  std::ofstream(folder_ + "/two") << kSecondToken;
  std::filesystem::permissions(folder_ + "/one", std::filesystem::perms::owner_read);
  std::filesystem::permissions(folder_ + "/two", std::filesystem::perms::owner_read);
  Start({{"token_file", folder_ + "/one"}});
  Puppet::Options options;
  options.settings["token_file"] = folder_ + "/two";
  Puppet& stranger = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(stranger.WaitEnded());
  EXPECT_EQ(stranger.end().code(), Code::kPermission);
  EXPECT_THAT(stranger.end().message(), HasSubstr("token"));
  EXPECT_THAT(stranger.end().message(), HasSubstr(folder_ + "/two"));
  Settings settings = ClientSettings();
  settings.token_file = folder_ + "/two";
  EXPECT_EQ(GetView(settings, Clock::now() + kPatience).status().code(), Code::kPermission);
}

TEST_F(ServerTest, AWrongJobIsRefused) {
  Start({{"job", "mine"}});
  Puppet::Options options;
  options.job = "yours";
  Puppet& stranger = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(stranger.WaitEnded());
  EXPECT_THAT(stranger.end().message(), HasSubstr("serves job 'mine', not 'yours'"));
}

TEST_F(ServerTest, AnotherProtocolVersionIsRefused) {
  Start();
  Puppet::Options options;
  options.version = 2;
  Puppet& old = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(old.WaitEnded());
  EXPECT_EQ(old.end().code(), Code::kProtocol);
  EXPECT_EQ(
      old.end().message(),
      "the controller speaks protocol version 7, and the worker 2; use the same weightcast on all hosts");
}

TEST_F(ServerTest, ARankTwiceIsRefused) {
  Start();
  Puppet& first = Add(TrainerOf(0), 2);
  ASSERT_TRUE(first.WaitConnected());
  Puppet& second = Add(TrainerOf(0), 2);
  ASSERT_TRUE(second.WaitEnded());
  EXPECT_THAT(second.end().message(), HasSubstr("rank taken: trainer 0"));
  EXPECT_EQ(first.client().state(), LinkState::kConnected);
}

TEST_F(ServerTest, AMissingWorkerIsNamedToAllWhoWait) {
  Start({{"join_timeout", "0.5"}});
  Puppet& trainer = Add(TrainerOf(0), 2);
  Puppet& rank = Add(RankOf("a"), 1);
  ASSERT_TRUE(trainer.WaitEnded());
  ASSERT_TRUE(rank.WaitEnded());
  EXPECT_THAT(trainer.end().message(), HasSubstr("missing: trainer 1 of 2 did not join within 0.5 s"));
  EXPECT_THAT(rank.end().message(), HasSubstr("trainer"));
}

TEST_F(ServerTest, ShapesThatDoNotMatchAreToldToTheEngine) {
  Start();
  Add(TrainerOf(0), 1);
  Puppet::Options options;
  options.shards = {{.tensor = {.name = "w", .dtype = DType::kF32, .shape = {256, 5}},
                     .box = {.offset = {0, 0}, .size = {256, 5}},
                     .declared = false}};
  Puppet& rank = Add(RankOf("a"), 1, options);
  ASSERT_TRUE(rank.WaitEnded());
  EXPECT_THAT(rank.end().message(), HasSubstr("[256, 5]"));
}

TEST_F(ServerTest, PortInUseIsClear) {
  Start();
  const auto second = Controller::Start({.listen = controller_->address(), .settings = {}});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("port in use"));
  EXPECT_THAT(second.status().message(), HasSubstr(controller_->address()));
}

TEST_F(ServerTest, WithoutATokenOnlyLoopback) {
  const auto open = Controller::Start({.listen = "0.0.0.0:0", .settings = {}});
  ASSERT_FALSE(open.ok());
  EXPECT_EQ(open.status().code(), Code::kPermission);
  EXPECT_THAT(open.status().message(), HasSubstr("WEIGHTCAST_TOKEN"));
}

TEST_F(ServerTest, AnUnreachableControllerIsNamed) {
  auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  ASSERT_TRUE(listener.ok());
  const std::string address = LocalAddressOf(listener->get())->ToString();
  listener->reset();  // Nobody listens there now.
  Puppet::Options options;
  options.address = address;
  options.settings["join_timeout"] = "0.5";
  Puppet& lonely = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(lonely.WaitEnded());
  EXPECT_EQ(lonely.end().code(), Code::kTimedOut);
  EXPECT_THAT(lonely.end().message(), HasSubstr(StrCat("no controller at ", address, " for 0.5 s")));
  EXPECT_THAT(lonely.end().message(), HasSubstr("check that the controller runs"));
}

TEST_F(ServerTest, AListenerThatNeverAnswersIsGivenUp) {
  auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  ASSERT_TRUE(listener.ok());
  Puppet::Options options;
  options.address = LocalAddressOf(listener->get())->ToString();
  options.settings["join_timeout"] = "0.5";
  Puppet& lonely = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(lonely.WaitEnded());
  EXPECT_EQ(lonely.end().code(), Code::kTimedOut);
}

TEST_F(ServerTest, WorkersMayComeBeforeTheController) {
  auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
  const std::string address = LocalAddressOf(listener->get())->ToString();
  listener->reset();
  Puppet::Options options;
  options.address = address;
  Puppet& early = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(early.Wait([&] { return early.client().state() == LinkState::kBroken; }));
  auto started = Controller::Start({.listen = address, .settings = {}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  controller_ = std::move(*started);
  EXPECT_TRUE(early.WaitConnected());
}

TEST_F(ServerTest, AStoppedControllerIsNoticedInTimeAndLookedForWithoutLimit) {
  Start({{"lease", "0.2"}});
  const std::string address = controller_->address();
  Puppet::Options options;
  for (const char* name : {"lease", "join_timeout", "controller_timeout"}) options.settings[name] = "0.2";
  Puppet& trainer = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(trainer.WaitConnected());
  EXPECT_TRUE(trainer.absence().Told().ok());
  controller_.reset();
  ASSERT_TRUE(trainer.Wait([&] { return trainer.client().state() == LinkState::kBroken; }));
  EXPECT_THAT(trainer.absence().Told().message(), HasSubstr("no controller for "));
  // What is sent meanwhile is not kept: no session can go on.
  const TimePoint end = Clock::now() + std::chrono::seconds(1);
  for (int64_t number = 1; Clock::now() < end; ++number) {
    ASSERT_TRUE(trainer.Publish(number));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(trainer.client().state(), LinkState::kBroken);
  EXPECT_THAT(trainer.absence().Told().message(), HasSubstr(address));

  auto started = Controller::Start({.listen = address, .settings = {{"lease", "0.2"}}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  controller_ = std::move(*started);
  ASSERT_TRUE(trainer.WaitWelcomes(2));
  EXPECT_FALSE(trainer.absence().since().has_value());
}

class ServerTokenTest : public ServerTest {
 protected:
  /// The file that the workers read, too.
  void WriteToken(const std::string& name, const std::string& token) {
    std::ofstream(folder_ + "/" + name) << token;
    std::filesystem::permissions(folder_ + "/" + name,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  void StartWith(const std::string& name, const std::string& listen) {
    auto started = Controller::Start(
        {.listen = listen, .settings = {{"token_file", folder_ + "/" + name}, {"lease", "0.2"}}});
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    controller_ = std::move(*started);
  }
};

TEST_F(ServerTokenTest, AControllerThatComesBackWithAnotherTokenIsFollowed) {
  WriteToken("token", kFirstToken);
  StartWith("token", "127.0.0.1:0");
  const std::string address = controller_->address();
  Puppet::Options options;
  options.settings = {{"token_file", folder_ + "/token"}, {"lease", "0.2"}};
  Puppet& trainer = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(trainer.WaitConnected());
  controller_.reset();
  ASSERT_TRUE(trainer.Wait([&] { return trainer.client().state() == LinkState::kBroken; }));
  WriteToken("token", kSecondToken);
  StartWith("token", address);
  ASSERT_TRUE(trainer.WaitWelcomes(2));
  // Its file is gone or another's, but its controller has the token of before.
  WriteToken("own", kSecondToken);
  controller_.reset();
  WriteToken("token", kThirdToken);
  StartWith("own", address);
  ASSERT_TRUE(trainer.WaitWelcomes(3));
}

TEST_F(ServerTokenTest, WhoeverRefusesTheTokenAtTheControllersAddressEndsNobodyAtOnce) {
  WriteToken("token", kFirstToken);
  WriteToken("other", kSecondToken);
  StartWith("token", "127.0.0.1:0");
  const std::string address = controller_->address();
  Puppet::Options options;
  options.settings = {{"token_file", folder_ + "/token"}, {"lease", "0.2"}, {"join_timeout", "2"}};
  Puppet& trainer = Add(TrainerOf(0), 1, options);
  ASSERT_TRUE(trainer.WaitConnected());
  controller_.reset();
  StartWith("other", address);
  ASSERT_TRUE(WaitRefused(trainer));
  controller_.reset();
  StartWith("token", address);
  ASSERT_TRUE(trainer.WaitWelcomes(2)) << trainer.end().ToString();
  // For good.
  controller_.reset();
  StartWith("other", address);
  ASSERT_TRUE(trainer.WaitEnded());
  EXPECT_EQ(trainer.end().code(), Code::kPermission);
  EXPECT_THAT(trainer.end().message(), HasSubstr(folder_ + "/token"));
}

TEST_F(ServerTest, BreaksLoseNothing) {
  Start();
  CuttableProxy proxy(controller_->address());
  Puppet::Options options;
  options.address = proxy.address();
  Puppet& trainer = Add(TrainerOf(0), 1, options);
  Puppet& rank = Add(RankOf("a"), 1, options);
  std::mt19937 random(7);
  for (int64_t number = 1; number <= 30; ++number) {
    ASSERT_TRUE(trainer.Publish(number));
    if (random() % 2 == 0) proxy.Cut();
    ASSERT_TRUE(trainer.WaitDone(static_cast<size_t>(number))) << "version " << number;
    ASSERT_TRUE(trainer.done().back().met_policy) << trainer.done().back().reason.ToString();
  }
  EXPECT_EQ(rank.served().number, 30);
  EXPECT_EQ(trainer.welcomes(), 1U) << "one session all along";
  EXPECT_GT(trainer.breaks(), 0U);
}

TEST_F(ServerTest, ABreakLongerThanTheLeaseIsDeathAndANewBeginning) {
  Start({{"lease", "0.4"}});
  CuttableProxy proxy(controller_->address());
  Puppet::Options options;
  options.settings["lease"] = "0.4";
  Puppet& trainer = Add(TrainerOf(0), 1, options);
  options.address = proxy.address();
  options.settings["controller_timeout"] = "20";
  Puppet& rank = Add(RankOf("a"), 1, options);
  ASSERT_TRUE(trainer.WaitConnected());
  ASSERT_TRUE(rank.WaitConnected());
  proxy.Switch(false);
  ASSERT_TRUE(trainer.WaitLost(1));
  EXPECT_THAT(trainer.lost()[0].reason.message(),
              HasSubstr("engine a rank 0 is lost: missed heartbeats for 0.4 s; declared dead"));
  proxy.Switch(true);
  ASSERT_TRUE(rank.Wait([&] { return rank.client().state() == LinkState::kConnected; }));
  EXPECT_EQ(rank.welcomes(), 2U);
  ASSERT_TRUE(trainer.Publish(1));
  ASSERT_TRUE(rank.WaitServed(1));
}

TEST_F(ServerTest, AnotherControllerAtTheSameAddressIsANewBeginning) {
  Start();
  const std::string address = controller_->address();
  Puppet& trainer = Add(TrainerOf(0), 1);
  Puppet& rank = Add(RankOf("a"), 1);
  ASSERT_TRUE(trainer.Publish(1));
  ASSERT_TRUE(trainer.WaitDone(1));
  controller_.reset();
  auto started = Controller::Start({.listen = address, .settings = {}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  controller_ = std::move(*started);
  ASSERT_TRUE(trainer.WaitWelcomes(2));
  ASSERT_TRUE(rank.WaitWelcomes(2));
  ASSERT_TRUE(trainer.Publish(2));
  ASSERT_TRUE(rank.WaitServed(2));
}

TEST_F(ServerTest, ARestartedControllerCountsOnFromItsWorkers) {
  Start();
  const std::string address = controller_->address();
  Puppet& trainer = Add(TrainerOf(0), 1);
  Puppet& rank = Add(RankOf("a"), 1);
  protocol::Term before;
  for (int64_t number = 1; number <= 6; ++number) {
    ASSERT_TRUE(trainer.WaitWelcomes(static_cast<size_t>(number)));
    ASSERT_TRUE(trainer.Publish(number));
    ASSERT_TRUE(rank.WaitServed(number)) << number;
    const protocol::Term term = TermOf(*controller_);
    EXPECT_LT(before, term);
    EXPECT_LE(term.number, static_cast<uint64_t>(number)) << "it counts, and is no time";
    before = term;
    controller_.reset();
    auto started = Controller::Start({.listen = address, .settings = {}});
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    controller_ = std::move(*started);
  }
}

TEST_F(ServerTest, OfTwoControllersTheOneThatWorkersComeToGoesAboveTheOther) {
  Start();
  auto started = Controller::Start({.listen = "127.0.0.1:0", .settings = {}});
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  Controller* const both[] = {controller_.get(), started->get()};
  CuttableProxy proxy(both[0]->address());
  Puppet::Options options;
  options.address = proxy.address();
  Puppet& trainer = Add(TrainerOf(0), 1, options);
  Puppet& rank = Add(RankOf("a"), 1, options);
  for (int64_t number = 1; number <= 6; ++number) {
    Controller& followed = *both[(number + 1) % 2];
    proxy.Lead(followed.address());
    if (number > 1) {
      ASSERT_TRUE(trainer.WaitWelcomes(static_cast<size_t>(number)));
      ASSERT_TRUE(rank.WaitWelcomes(static_cast<size_t>(number)));
    }
    ASSERT_TRUE(trainer.Publish(number));
    ASSERT_TRUE(rank.WaitServed(number)) << number;
    if (number > 1) {
      EXPECT_LT(TermOf(*both[number % 2]), TermOf(followed)) << number;
    }
  }
  puppets_.clear();  // Before the controllers go.
}

TEST_F(ServerTest, LeavingIsToldToTheOthers) {
  Start();
  Puppet& trainer = Add(TrainerOf(0), 1);
  Puppet& rank = Add(RankOf("a"), 1);
  ASSERT_TRUE(trainer.WaitConnected());
  ASSERT_TRUE(rank.WaitConnected());
  trainer.client().Leave(Clock::now() + kPatience);
  EXPECT_EQ(trainer.client().state(), LinkState::kEnded);
  ASSERT_TRUE(rank.WaitLost(1));
  EXPECT_EQ(rank.lost()[0].reason.message(), "trainer 0 has left; start it again to go on");
}

TEST_F(ServerTest, ViewsFollowWhatHappens) {
  Start({{"job", "shown"}});
  Settings settings = ClientSettings();
  const auto stream = ViewStream::Open(settings);
  ASSERT_TRUE(stream.ok());
  auto view = (*stream)->Next(Clock::now() + kPatience);
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_EQ(view->job, "shown");
  EXPECT_TRUE(view->models.empty());
  Puppet::Options options;
  options.job = "shown";
  Add(TrainerOf(0), 1, options);
  Add(RankOf("a"), 1, options);
  for (int i = 0; i < 100; ++i) {
    view = (*stream)->Next(Clock::now() + kPatience);
    ASSERT_TRUE(view.ok());
    if (!view->models.empty() && view->models[0].phase == "planned") break;
  }
  ASSERT_EQ(view->models.size(), 1U);
  EXPECT_EQ(view->models[0].model, "policy");
  EXPECT_EQ(view->models[0].phase, "planned");
  ASSERT_EQ(view->models[0].workers.size(), 2U);
  EXPECT_EQ(view->models[0].workers[0].host, "test");
  EXPECT_EQ(view->models[0].workers[0].addresses.at(0), "127.0.0.1:1");
  controller_->Stop();
  Status end;
  for (int i = 0; i < 100 && end.ok(); ++i) end = (*stream)->Next(Clock::now() + kPatience).status();
  EXPECT_EQ(end.code(), Code::kUnavailable);
}

TEST_F(ServerTest, ClientsEndQuicklyInEveryState) {
  Start();
  for (int i = 0; i < 20; ++i) {
    Puppet::Options options;
    options.address = controller_->address();
    options.name = RankOf(StrCat("e", i));  // The one before may not be missed yet.
    const TimePoint before = Clock::now();
    {
      Puppet puppet(options);
      if (i % 2 == 1) {
        EXPECT_TRUE(puppet.WaitConnected());
      }
    }
    EXPECT_LT(Clock::now() - before, std::chrono::seconds(5));
  }
}

}  // namespace
}  // namespace weightcast::control
