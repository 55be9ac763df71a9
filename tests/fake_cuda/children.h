#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "child_process.h"
#include "fake_cuda/host.h"
#include "fake_cuda/socket.h"

namespace weightcast::fake_cuda {

using test::Eventually;

/// A folder for one machine. At its end the machine must have ended by itself, and left nothing.
class Folder {
 public:
  Folder() {
    std::string path = testing::TempDir() + "fake_cuda_XXXXXX";
    path_ = mkdtemp(path.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    EXPECT_TRUE(Eventually([&] { return std::filesystem::is_empty(path_); }))
        << "something is left in " << path_;
    std::filesystem::remove_all(path_);
  }
  [[nodiscard]] std::string Config(const std::string& more = "") const {
    return "dir=" + path_ + (more.empty() ? "" : ",") + more;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// What parent and child send each other: a few bytes, and perhaps a descriptor.
class Wire {
 public:
  explicit Wire(int socket) : socket_(socket) {}
  template <typename T>
  void Send(const T& value, int fd = -1) const {
    EXPECT_TRUE(SendMessage(socket_, &value, sizeof value, fd));
  }
  template <typename T>
  T Receive(int* fd = nullptr) const {
    T value{};
    int got = -1;
    EXPECT_EQ(ReceiveMessage(socket_, &value, sizeof value, got, true), static_cast<ssize_t>(sizeof value));
    if (fd != nullptr) *fd = got;
    return value;
  }

 private:
  int socket_;
};

/// A process that runs a function, and must end well unless it is killed. Make it before this process joins a
/// machine: CUDA does not go on after fork.
class Child : public test::Child {
 public:
  explicit Child(const std::function<void(const Wire&)>& run)
      : test::Child([&run](const test::Channel& channel) {
          run(Wire(channel.fd()));
          return testing::Test::HasFailure() ? 1 : 0;
        }) {}
  ~Child() { EXPECT_TRUE(!alive() || Wait() == 0) << "the child failed"; }

  [[nodiscard]] Wire wire() { return Wire(channel().fd()); }
};

}  // namespace weightcast::fake_cuda
