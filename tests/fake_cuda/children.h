#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "fake_cuda/host.h"
#include "fake_cuda/socket.h"

namespace weightcast::fake_cuda {

inline bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

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

/// A process that runs a function. Make it before this process joins a machine: CUDA does not go on after
/// fork.
class Child {
 public:
  explicit Child(const std::function<void(const Wire&)>& run) {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(sockets[0]);
      run(Wire(sockets[1]));
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(sockets[1]);
    socket_ = sockets[0];
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    EXPECT_TRUE(pid_ == 0 || Wait() == 0) << "the child failed";
    close(socket_);
  }

  [[nodiscard]] Wire wire() const { return Wire(socket_); }
  [[nodiscard]] int pid() const { return pid_; }
  void Kill() {
    kill(pid_, SIGKILL);
    Wait();
  }
  /// Its exit code; minus the signal that ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  int pid_ = 0;
  int socket_ = -1;
};

}  // namespace weightcast::fake_cuda
