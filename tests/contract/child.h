#pragma once

#include <functional>
#include <string>

#include "base/fd.h"
#include "contract/side.h"

namespace weightcast::transport {

/// Messages between a test and its child process.
class Channel {
 public:
  explicit Channel(UniqueFd fd) : fd_(std::move(fd)) {}
  void Send(std::string_view message);
  /// The next message; ends the process when the other end is gone or silent for kPatience.
  std::string Receive();
  /// A message is here, or the other end is gone.
  [[nodiscard]] bool Readable() const;

 private:
  UniqueFd fd_;
};

/// A process that runs `body` and ends. Killed by the destructor. Fork before there are threads.
class Child {
 public:
  explicit Child(const std::function<void(Channel&)>& body);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  Channel& channel() { return channel_; }
  [[nodiscard]] int pid() const { return pid_; }
  void Signal(int number) const;
  /// Until the kernel says that it has stopped.
  void Stop() const;
  /// SIGKILL, and waits until it is gone.
  void Kill();

 private:
  int pid_ = -1;
  Channel channel_{UniqueFd()};
};

/// Opens the link over the channel; returns when it is ready here. Both ends call it, in opposite roles.
/// Returns the peer's incarnation.
Incarnation ConnectOver(Channel& channel, Side& side, LinkId link, Role role);

std::string Pack(const Described& region);
Described Unpack(std::string_view bytes);

}  // namespace weightcast::transport
