#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contract/devices.h"
#include "weightcast/endpoint.h"

/// Endpoints with device memory in one process, on the fake driver.
namespace weightcast {

inline TimePoint Soon() { return Clock::now() + transport::kPatience; }

/// An endpoint of this process.
class Side {
 public:
  explicit Side(const std::string& role, const std::map<std::string, std::string>& settings = {}) {
    EndpointOptions options;
    options.self = {"test", role, role == "inference" ? "rollout" : "", 0, 0};
    options.token = "the-token-of-these-tests";
    transport::Require(options.settings.Set("bind", "127.0.0.1").ok(), "bind");
    for (const auto& [name, value] : settings)
      transport::Require(options.settings.Set(name, value).ok(), name);
    auto made = Endpoint::Create(std::move(options));
    transport::Require(made.ok(), made.status().message());
    endpoint_ = std::move(made).value();
  }
  Endpoint* operator->() const { return endpoint_.get(); }
  Connection To(const Side& other) const {
    auto made = endpoint_->Connect(other->Addresses(), other->self(), Soon());
    transport::Require(made.ok(), made.status().message());
    return *made;
  }
  Connection Known(const Side& other) const {
    while (true) {
      if (auto found = endpoint_->Find(other->self().incarnation)) return *found;
      std::this_thread::yield();
    }
  }

 private:
  std::unique_ptr<Endpoint> endpoint_;
};

/// Device memory of a test, registered by nobody yet.
class Bytes {
 public:
  Bytes(transport::DevicesInUse& devices, size_t size)
      : devices_(devices), memory_(devices.Allocate(size, true)) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { devices_.Free(memory_); }
  [[nodiscard]] const Memory& memory() const { return memory_; }
  std::vector<std::byte> Fill(int seed) const {
    std::vector<std::byte> bytes(memory_.length);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 31 + i / 251 + static_cast<size_t>(seed));
    devices_.Write(memory_, 0, bytes);
    return bytes;
  }
  [[nodiscard]] std::vector<std::byte> Read() const {
    std::vector<std::byte> bytes(memory_.length);
    devices_.Read(memory_, 0, bytes);
    return bytes;
  }

 private:
  transport::DevicesInUse& devices_;
  const Memory memory_;
};

inline Region RegisterAt(const Side& side, const Memory& memory, Access access) {
  auto region = side->Register(memory, access);
  transport::Require(region.ok(), region.status().message());
  return std::move(region).value();
}

inline RemoteRegion ImportInto(Connection& connection, const Region& region) {
  auto remote = connection.Import(region.Descriptor());
  transport::Require(remote.ok(), remote.status().message());
  return *remote;
}

inline Piece Whole(const Region& local, const RemoteRegion& remote) {
  return {local.Whole(), remote.Whole()};
}

}  // namespace weightcast
