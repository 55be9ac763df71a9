#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/strings.h"
#include "child_process.h"
#include "weightcast/endpoint.h"
#include "weightcast/memory.h"

// Two processes: the test, and a peer that it forks, tells what to do and kills.

namespace weightcast::system_test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline constexpr Duration kPatience = std::chrono::seconds(60);
inline TimePoint Soon() { return Clock::now() + kPatience; }

using test::Eventually;

/// Random bytes, each 64 KiB of them marked with its number. Quick also where nothing is optimised.
template <typename Visit>
void ForEachBlock(size_t size, uint64_t seed, Visit visit) {
  std::vector<uint64_t> block(8192);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (uint64_t& word : block) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    word = state;
  }
  constexpr size_t kBlock = 65536;
  for (size_t i = 0; i < size; i += kBlock) {
    block[0] = seed + i;
    visit(i, block.data(), std::min(kBlock, size - i));
  }
}
inline void Fill(std::span<std::byte> bytes, uint64_t seed) {
  ForEachBlock(bytes.size(), seed,
               [&](size_t at, const void* block, size_t size) { std::memcpy(&bytes[at], block, size); });
}

/// Whether they are what Fill made.
inline bool IsFilled(std::span<const std::byte> bytes, uint64_t seed) {
  bool same = true;
  ForEachBlock(bytes.size(), seed, [&](size_t at, const void* block, size_t size) {
    same = same && std::memcmp(&bytes[at], block, size) == 0;
  });
  return same;
}

/// Memory from Allocate, or of the process alone.
struct Area {
  Area(size_t size, bool shared) {
    if (shared) {
      buffer = *Allocate(size);
      bytes = buffer->bytes();
    } else {
      own = std::make_unique<std::byte[]>(size);
      bytes = {own.get(), size};
    }
  }
  std::shared_ptr<SharedBuffer> buffer;
  std::unique_ptr<std::byte[]> own;
  std::span<std::byte> bytes;
};

struct PeerSetup {
  std::string transport{};  ///< As the setting; empty: all.
  bool shared = true;       ///< Kind of memory.
  std::string lease = "5";
  std::string token = "the-token-of-these-tests";
  uint32_t rank = 0;
  Incarnation incarnation = 0;
  std::string nics{};  ///< As the setting; empty: all.
};
inline std::string NameOf(const ::testing::TestParamInfo<PeerSetup>& setup) {
  return StrCat(setup.param.transport, setup.param.shared ? "Shared" : "Private");
}

inline EndpointOptions OptionsOf(const PeerSetup& setup, std::string role) {
  EndpointOptions options;
  options.self = {"job", std::move(role), "", setup.rank, setup.incarnation};
  options.token = setup.token;
  const std::map<std::string, std::string> settings = {{"bind", "127.0.0.1"},
                                                       {"transport", setup.transport},
                                                       {"lease", setup.lease},
                                                       {"chunk", "256K"},
                                                       {"nics", setup.nics}};
  for (const auto& [name, value] : settings) {
    if (!options.settings.Set(name, value).ok()) std::abort();
  }
  return options;
}

std::string Hex(const std::string& bytes);
std::string Unhex(const std::string& text);

/// The test's handle to the peer process: role "peer", with the memory, the endpoint and the connection it
/// is told to make.
class Peer {
 public:
  /// Fork before the test has threads.
  explicit Peer(const PeerSetup& setup, size_t memory = 0);
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  /// Says it and returns the answer, without its leading "ok "; a test failure otherwise.
  std::string Do(const std::string& command);
  /// The same where the answer need not be ok.
  std::string Ask(const std::string& command);
  void Tell(const std::string& command) { (void)child_->channel().TrySend(command); }
  std::string Answer();
  /// Creates the peer's endpoint; before this it has no threads.
  void Open();
  void Signal(int signal) const { child_->Signal(signal); }
  void Kill() { child_->Kill(); }

  [[nodiscard]] pid_t pid() const { return child_->pid(); }
  [[nodiscard]] const Identity& identity() const { return identity_; }
  [[nodiscard]] const std::vector<std::string>& addresses() const { return addresses_; }
  /// Descriptor of its memory.
  std::string Region(const std::string& access) { return Unhex(Do("region " + access)); }
  uint64_t Hash() { return std::stoull(Do("hash")); }
  /// What it has printed to standard error so far.
  [[nodiscard]] std::string Log() const;

 private:
  UniqueFd log_;
  std::optional<test::Child> child_;
  Identity identity_;
  std::vector<std::string> addresses_;
};

}  // namespace weightcast::system_test
