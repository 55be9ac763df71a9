#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

/// Other processes of an experiment: the same program, started again, so that each may use the driver.
namespace probe {

inline constexpr double kPatience = 15;         ///< Seconds for an answer.
inline constexpr size_t kMostDescriptors = 32;  ///< Of one message.

/// Whole messages of fixed size, and descriptors, over a socket.
class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  /// False when the other side has gone.
  bool Write(const void* bytes, size_t size, const std::vector<int>& fds) const;
  /// False when the other side has gone, or said nothing for so long.
  bool Read(void* bytes, size_t size, std::vector<int>* fds, double seconds) const;

  // These end the process where the other side has gone, or is silent for kPatience.
  template <typename T>
  void Send(const T& value, const std::vector<int>& fds = {}) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!Write(&value, sizeof value, fds)) Gone();
  }
  template <typename T>
  T Receive(std::vector<int>* fds = nullptr) const {
    const auto value = TryReceive<T>(kPatience, fds);
    if (!value) Gone();
    return *value;
  }
  template <typename T>
  std::optional<T> TryReceive(double seconds, std::vector<int>* fds = nullptr) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (!Read(&value, sizeof value, fds, seconds)) return std::nullopt;
    return value;
  }

 private:
  [[noreturn]] static void Gone();
  int socket_;
};

/// This program as a child with those arguments, killed at the end. It dies with the thread that made it.
class Peer {
 public:
  explicit Peer(const std::vector<std::string>& arguments);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() { Kill(); }

  [[nodiscard]] const Channel& channel() const { return channel_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void Kill();
  /// Its status as waitpid has it; nullopt: it has been killed after so many seconds.
  std::optional<int> Wait(double seconds);

 private:
  explicit Peer(const std::vector<std::string>& arguments, const int (&sockets)[2]);
  pid_t pid_ = -1;
  Channel channel_;
};

/// The socket to who started this process, as its child. It stays open for the process's life.
const Channel& Parent();

}  // namespace probe
