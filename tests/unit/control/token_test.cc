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

namespace weightcast::control {
namespace {

using ::testing::HasSubstr;

/// A folder of its own as XDG_RUNTIME_DIR, and no token in the environment.
class TokenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/wc-token-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    ::setenv("XDG_RUNTIME_DIR", name, 1);
    ::unsetenv("WEIGHTCAST_TOKEN");
  }
  void TearDown() override {
    ::unsetenv("WEIGHTCAST_TOKEN");
    ::unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(folder_);
  }
  std::string Write(const std::string& name, const std::string& text, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  std::string folder_;
  Settings settings_;
};

TEST_F(TokenTest, WhoComesFirstMakesItAndAllReadTheSame) {
  const auto first = LoadToken(settings_);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->secret.size(), 64U);
  EXPECT_FALSE(first->configured);
  EXPECT_EQ(first->origin, folder_ + "/weightcast/token");
  EXPECT_EQ(LoadToken(settings_)->secret, first->secret);
  struct stat info{};
  ASSERT_EQ(::stat(first->origin.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(::stat((folder_ + "/weightcast").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

TEST_F(TokenTest, ManyAtOnceAgree) {
  std::vector<std::string> secrets(16);
  std::vector<std::thread> threads;
  for (auto& secret : secrets) threads.emplace_back([&] { secret = LoadToken(settings_)->secret; });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/weightcast"), {}), 1)
      << "nothing half-written stays";
}

TEST_F(TokenTest, TheEnvironmentComesBeforeTheFile) {
  settings_.token_file = Write("job", "from-file\n", 0600);
  EXPECT_EQ(LoadToken(settings_)->secret, "from-file");
  EXPECT_TRUE(LoadToken(settings_)->configured);
  ::setenv("WEIGHTCAST_TOKEN", "from-environment", 1);
  EXPECT_EQ(LoadToken(settings_)->secret, "from-environment");
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
  settings_.token_file = Write("open", "secret", 0644);
  EXPECT_EQ(LoadToken(settings_).status().code(), Code::kPermission);
}

TEST_F(TokenTest, LinksAreNotFollowed) {
  ASSERT_TRUE(LoadToken(settings_).ok());
  const std::string own = folder_ + "/weightcast/token";
  std::filesystem::remove(own);
  std::filesystem::create_symlink(Write("elsewhere", "planted", 0600), own);
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
  EXPECT_THAT(LoadToken(settings_).status().message(), HasSubstr("too long"));
  settings_.token_file = folder_;
  EXPECT_FALSE(LoadToken(settings_).ok());
}

TEST(SameToken, ComparesWhole) {
  EXPECT_TRUE(SameToken("abc", "abc"));
  EXPECT_FALSE(SameToken("abc", "abcd"));
  EXPECT_FALSE(SameToken("", "a"));
}

}  // namespace
}  // namespace weightcast::control
