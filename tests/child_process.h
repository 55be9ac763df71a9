#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/fd.h"

/// The processes that a test starts, and what it says to them.
namespace weightcast::test {

inline constexpr std::chrono::seconds kPatience{60};

/// Waits until `done`; false after `patience`.
template <typename Done>
bool Eventually(const Done& done, std::chrono::duration<double> patience = kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline void RequireOf(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "processes of a test: %s\n", what);
  std::abort();
}

/// A child. Killed by the destructor unless it has ended before.
class Process {
 public:
  /// Runs `body`, which returns the exit code, in a fork that dies with this thread. Call it while
  /// single-threaded, unless the test is about just that.
  template <typename Body>
  static Process Fork(const Body& body) {
    Process made;
    made.pid_ = fork();
    RequireOf(made.pid_ >= 0, "no fork");
    if (made.pid_ != 0) return made;
    [&body]() noexcept {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(body());
    }();
    std::abort();
  }

  /// Starts a program, whose path is the first of `words`. `environment`: "NAME=value", added to ours. `log`:
  /// the file that takes its standard error; empty: ours does. Its standard output goes nowhere.
  static Process Start(std::vector<std::string> words, std::vector<std::string> environment = {},
                       const std::string& log = {}) {
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (!log.empty())
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                       0600);
    Process made;
    const std::vector<char*> arguments = Pointers(words);
    RequireOf(posix_spawn(&made.pid_, arguments.front(), &actions, nullptr, arguments.data(),
                          Pointers(environment).data()) == 0,
              "cannot start a program");
    posix_spawn_file_actions_destroy(&actions);
    return made;
  }

  /// The path of this very program.
  static std::string Self() {
    std::array<char, 4096> path{};
    RequireOf(readlink("/proc/self/exe", path.data(), path.size() - 1) > 0, "no /proc/self/exe");
    return path.data();
  }

  Process() = default;
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), code_(std::exchange(other.code_, std::nullopt)) {}
  Process& operator=(Process&& other) noexcept {
    Kill();
    pid_ = std::exchange(other.pid_, -1);
    code_ = std::exchange(other.code_, std::nullopt);
    return *this;
  }
  ~Process() { Kill(); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Whether it has been started, and its end not been seen.
  [[nodiscard]] bool alive() const { return pid_ > 0 && !code_; }
  void Signal(int number) const {
    if (alive()) kill(pid_, number);
  }
  /// SIGSTOP, until the kernel says that it has stopped.
  void Stop() const {
    Signal(SIGSTOP);
    int status = 0;
    RequireOf(waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status), "a child has not stopped");
  }
  /// SIGKILL, and waits until it is gone.
  void Kill() {
    Signal(SIGKILL);
    if (alive()) Reap(0);
  }
  /// Its exit code, or 256 and the signal that ended it; nothing while it runs. Never blocks.
  std::optional<int> Code() {
    if (alive()) Reap(WNOHANG);
    return code_;
  }
  /// The same of its end, if that comes in time.
  std::optional<int> Wait(std::chrono::duration<double> patience = kPatience) {
    Eventually([this] { return Code().has_value(); }, patience);
    return code_;
  }

 private:
  static std::vector<char*> Pointers(std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    return pointers;
  }

  void Reap(int flags) {
    int status = 0;
    if (waitpid(pid_, &status, flags) != pid_) return;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  }

  pid_t pid_ = -1;
  std::optional<int> code_;
};

/// Whole messages between two processes.
class Channel {
 public:
  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}
  [[nodiscard]] int fd() const { return fd_.get(); }

  /// False: the other process is gone.
  [[nodiscard]] bool TrySend(std::string_view message) const {
    return send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(message.size());
  }
  /// Nothing: the other process is gone, or silent for so long.
  [[nodiscard]] std::optional<std::string> TryReceive(std::chrono::milliseconds patience = kPatience) const {
    pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    if (poll(&entry, 1, static_cast<int>(patience.count())) != 1) return std::nullopt;
    std::string message(65536, '\0');
    const ssize_t got = recv(fd_.get(), message.data(), message.size(), 0);
    if (got <= 0) return std::nullopt;
    message.resize(static_cast<size_t>(got));
    return message;
  }
  // These two end this process instead.
  void Send(std::string_view message) const { RequireOf(TrySend(message), "another one is gone"); }
  std::string Receive() const {
    auto message = TryReceive();
    RequireOf(message.has_value(), "another one is gone, or silent");
    return *std::move(message);
  }
  /// A message is here, or the other process is gone.
  [[nodiscard]] bool Readable() const {
    pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    return poll(&entry, 1, 0) == 1;
  }

 private:
  UniqueFd fd_;
};

/// A fork that runs `body` with its end of a channel. It ends with what that returns, if anything, else with
/// 0.
class Child : public Process {
 public:
  template <typename Body>
  explicit Child(const Body& body) {
    std::array<int, 2> pair{};
    RequireOf(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0, "no socketpair");
    channel_ = Channel(UniqueFd(pair[0]));
    UniqueFd theirs(pair[1]);
    Process::operator=(Fork([&] {
      channel_ = Channel(std::move(theirs));
      if constexpr (std::is_void_v<std::invoke_result_t<const Body&, Channel&>>) {
        body(channel_);
        return 0;
      } else {
        return body(channel_);
      }
    }));
  }
  Channel& channel() { return channel_; }

 private:
  Channel channel_{UniqueFd()};
};

}  // namespace weightcast::test
