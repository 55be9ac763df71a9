#include "control/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "scratch_folder.h"
#include "unit/control/tokens.h"

namespace weightcast::control {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string RoleText(const stream::Member& member) {
  return std::string(
      stream::RoleToken::Derive(*stream::MasterToken::Parse(kFirstToken), member)->Print().bytes());
}
Token RoleOf(const stream::Member& member) { return *Token::Parse(RoleText(member), true, "here"); }

/// A folder of its own as XDG_RUNTIME_DIR, and no token in the environment.
class TokenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
    ::unsetenv("WEIGHTCAST_TOKEN");
  }
  void TearDown() override {
    ::unsetenv("WEIGHTCAST_TOKEN");
    ::unsetenv("XDG_RUNTIME_DIR");
  }
  std::string Write(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  const test::ScratchFolder scratch_;
  const std::string folder_ = scratch_.path();
  Settings settings_;
};

TEST_F(TokenTest, WhoComesFirstMakesItAndAllReadTheSame) {
  const auto first = LoadToken(settings_);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_FALSE(first->configured());
  EXPECT_EQ(first->origin(), folder_ + "/weightcast/token");
  EXPECT_EQ(std::filesystem::file_size(first->origin()), 65U) << "32 bytes in hexadecimal, and a line end";
  EXPECT_TRUE(*LoadToken(settings_) == *first);
  struct stat info{};
  ASSERT_EQ(::stat(first->origin().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat((folder_ + "/weightcast").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(TokenTest, ManyAtOnceAgree) {
  std::vector<std::string> secrets(16);
  std::vector<std::thread> threads;
  for (auto& secret : secrets)
    threads.emplace_back([&] { secret = *LoadToken(settings_)->SharedKey(stream::Purpose::kPeers); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/weightcast"), {}), 1)
      << "nothing half-written stays";
}

TEST_F(TokenTest, TheEnvironmentComesBeforeTheFile) {
  settings_.token_file = Write("job", StrCat(kFirstToken, "\n"), 0600);
  EXPECT_TRUE(*LoadToken(settings_) == *Token::Parse(kFirstToken, true, ""));
  EXPECT_TRUE(LoadToken(settings_)->configured());
  ::setenv("WEIGHTCAST_TOKEN", kSecondToken, 1);
  EXPECT_TRUE(*LoadToken(settings_) == *Token::Parse(kSecondToken, true, ""));
  EXPECT_FALSE(*LoadToken(settings_) == *Token::Parse(kFirstToken, true, ""));
}

TEST_F(TokenTest, WhatOthersCanReachIsRefused) {
  ASSERT_TRUE(LoadToken(settings_).ok());
  const std::string own = folder_ + "/weightcast/token";
  ::chmod(own.c_str(), 0644);
  EXPECT_EQ(LoadToken(settings_).status().code(), Code::kPermission);
  EXPECT_THAT(LoadToken(settings_).status().message(), HasSubstr("chmod go-rwx"));
  ::chmod(own.c_str(), 0600);
  ::chmod((folder_ + "/weightcast").c_str(), 0755);
  EXPECT_EQ(LoadToken(settings_).status().code(), Code::kPermission);
  settings_.token_file = Write("open", kFirstToken, 0644);
  EXPECT_EQ(LoadToken(settings_).status().code(), Code::kPermission);
}

TEST_F(TokenTest, LinksAreNotFollowed) {
  ASSERT_TRUE(LoadToken(settings_).ok());
  const std::string own = folder_ + "/weightcast/token";
  std::filesystem::remove(own);
  std::filesystem::create_symlink(Write("elsewhere", kFirstToken, 0600), own);
  EXPECT_FALSE(LoadToken(settings_).ok());
  std::filesystem::remove_all(folder_ + "/weightcast");
  std::filesystem::create_directory(folder_ + "/real");
  std::filesystem::create_directory_symlink(folder_ + "/real", folder_ + "/weightcast");
  EXPECT_EQ(LoadToken(settings_).status().code(), Code::kPermission);
}

TEST_F(TokenTest, BadFilesAreNamed) {
  settings_.token_file = folder_ + "/none";
  EXPECT_THAT(LoadToken(settings_).status().message(), HasSubstr(folder_ + "/none"));
  settings_.token_file = Write("empty", "\n", 0600);
  EXPECT_THAT(LoadToken(settings_).status().message(), HasSubstr("is empty"));
  settings_.token_file = Write("blank", "two words", 0600);
  EXPECT_FALSE(LoadToken(settings_).ok());
  settings_.token_file = Write("long", std::string(10000, 'x'), 0600);
  EXPECT_THAT(LoadToken(settings_).status().message(), HasSubstr("more than 4096 bytes, too many"));
  settings_.token_file = Write("weak", "short-secret", 0600);
  EXPECT_EQ(LoadToken(settings_).status().code(), Code::kInvalidArgument);
  EXPECT_THAT(LoadToken(settings_).status().message(), HasSubstr("too weak"));
  EXPECT_THAT(LoadToken(settings_).status().message(), HasSubstr(folder_ + "/weak"));
  EXPECT_THAT(LoadToken(settings_).status().message(), Not(HasSubstr("short-secret")));
  settings_.token_file = folder_;
  EXPECT_FALSE(LoadToken(settings_).ok());
}

TEST(Token, AMasterTokenServesEveryone) {
  const Token token = *Token::Parse(kFirstToken, true, "here");
  EXPECT_TRUE(token.Master().ok());
  EXPECT_TRUE(token.ForObserver().ok());
  EXPECT_EQ(token.ForWorker({.role = stream::Role::kTrainer})->member().role, stream::Role::kTrainer);
  // An engine's name may be longer than a key's.
  const stream::Member member{.role = stream::Role::kInference, .engine = std::string(256, '*')};
  EXPECT_EQ(token.ForWorker(member)->member(), stream::Member{.role = stream::Role::kInference});
}

TEST(Token, ARoleTokenServesItsRoleAlone) {
  const Token trainer = RoleOf({.role = stream::Role::kTrainer});
  EXPECT_TRUE(trainer.ForWorker({.role = stream::Role::kTrainer}).ok());
  EXPECT_TRUE(trainer.ForObserver().ok());
  EXPECT_EQ(trainer.Master().status().code(), Code::kPermission);
  const stream::Member engine{.role = stream::Role::kInference, .engine = "a"};
  EXPECT_EQ(trainer.ForWorker(engine).status().message(),
            "the token in here is for trainer, this process is inference/a; give it one of `weightcast token "
            "--role inference`");
  const Token of_a = RoleOf(engine);
  EXPECT_TRUE(of_a.ForWorker(engine).ok());
  EXPECT_EQ(of_a.ForWorker({.role = stream::Role::kInference, .engine = "b"}).status().code(),
            Code::kPermission);
  EXPECT_TRUE(RoleOf({.role = stream::Role::kInference}).ForWorker(engine).ok());
}

TEST(Token, WhatIsSharedIsTheSameForAllWhoHaveIt) {
  const Token master = *Token::Parse(kFirstToken, true, "here");
  const Token trainer = RoleOf({.role = stream::Role::kTrainer});
  const Token peer = RoleOf({.role = stream::Role::kPeer});
  EXPECT_EQ(*master.SharedKey(stream::Purpose::kPeers), *trainer.SharedKey(stream::Purpose::kPeers));
  EXPECT_EQ(*peer.SharedKey(stream::Purpose::kPeers), *trainer.SharedKey(stream::Purpose::kPeers));
  EXPECT_EQ(*master.SharedKey(stream::Purpose::kQueue), *trainer.SharedKey(stream::Purpose::kQueue));
  EXPECT_NE(*master.SharedKey(stream::Purpose::kQueue), *master.SharedKey(stream::Purpose::kPeers));
  EXPECT_EQ(peer.SharedKey(stream::Purpose::kQueue).status().code(), Code::kPermission);
  const Token observer = RoleOf({.role = stream::Role::kObserver});
  EXPECT_EQ(observer.SharedKey(stream::Purpose::kPeers).status().code(), Code::kPermission);
}

TEST(Token, ADamagedRoleTokenNamesItsOriginAndNotItsText) {
  const std::string text = RoleText({.role = stream::Role::kTrainer});
  const Status status = Token::Parse(text.substr(0, text.size() - 2), true, "/some/file").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("/some/file"));
  EXPECT_THAT(status.message(), Not(HasSubstr(text.substr(20, 10))));
}

}  // namespace
}  // namespace weightcast::control
