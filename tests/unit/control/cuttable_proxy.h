#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/poller.h"
#include "base/socket.h"

namespace weightcast::control {

/// Stands between clients and a server on loopback; Cut ends all connections as a broken network would.
class CuttableProxy {
 public:
  explicit CuttableProxy(const std::string& server) : server_(*SocketAddress::Parse(server)) {
    auto listener = Listen(*SocketAddress::Parse("127.0.0.1:0"), {});
    EXPECT_TRUE(listener.ok());
    listener_ = std::move(*listener);
    wake_.emplace(std::move(*WakeFd::Create()));
    thread_ = std::thread([this] { Run(); });
  }
  ~CuttableProxy() {
    stop_ = true;
    wake_->Wake();
    thread_.join();
  }

  [[nodiscard]] std::string address() const { return LocalAddressOf(listener_.get())->ToString(); }
  void Cut() {
    cut_ = true;
    wake_->Wake();
  }
  /// From now on it leads to another server.
  void Lead(const std::string& server) {
    {
      const std::lock_guard lock(mutex_);
      server_ = *SocketAddress::Parse(server);
    }
    Cut();
  }
  /// While off, nobody is let through.
  void Switch(bool on) {
    on_ = on;
    Cut();
  }

 private:
  struct Side {
    UniqueFd fd;
    int other = -1;
  };

  void Run() {
    while (!stop_) {
      std::vector<pollfd> polled = {{.fd = wake_->fd(), .events = POLLIN, .revents = 0},
                                    {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const auto& [fd, side] : sides_) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      poll(polled.data(), polled.size(), -1);
      wake_->Drain();
      if (cut_.exchange(false)) {
        sides_.clear();
        continue;
      }
      if (polled[1].revents != 0) TakeOne();
      for (size_t i = 2; i < polled.size(); ++i)
        if (polled[i].revents != 0 && sides_.contains(polled[i].fd)) Pump(polled[i].fd);
    }
  }
  SocketAddress Server() {
    const std::lock_guard lock(mutex_);
    return server_;
  }
  void TakeOne() {
    auto client = Accept(listener_.get());
    if (!client.ok() || !client->valid() || !on_) return;
    auto server = Connect(Server(), Clock::now() + std::chrono::seconds(5));
    if (!server.ok()) return;
    const int a = client->get();
    const int b = server->get();
    sides_[a] = {std::move(*client), b};
    sides_[b] = {std::move(*server), a};
  }
  void Pump(int fd) {
    char buffer[1 << 16];
    const int other = sides_[fd].other;
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const bool sent = got > 0 && weightcast::SendAll(other, {buffer, static_cast<size_t>(got)},
                                                     Clock::now() + std::chrono::seconds(5))
                                     .ok();
    if (sent) return;
    sides_.erase(fd);
    sides_.erase(other);
  }

  std::mutex mutex_;
  SocketAddress server_;
  UniqueFd listener_;
  std::optional<WakeFd> wake_;
  std::map<int, Side> sides_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> cut_{false};
  std::atomic<bool> on_{true};
  std::thread thread_;
};

}  // namespace weightcast::control
