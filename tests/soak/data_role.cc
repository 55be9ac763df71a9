#include "soak/data_role.h"

#include <dirent.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "base/strings.h"

namespace weightcast::soak {
namespace {

constexpr size_t kBlock = 64 << 10;
/// What a process holds settles in its first rounds.
constexpr uint64_t kSettled = 5;

template <typename Visit>
bool ForEachBlock(size_t size, uint64_t seed, Visit visit) {
  std::vector<uint64_t> block(kBlock / 8);
  uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15U;
  for (uint64_t& word : block) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    word = state;
  }
  bool all = true;
  for (size_t at = 0; at < size; at += kBlock) {
    block[0] = seed ^ at;
    all = visit(at, block.data()) && all;
  }
  return all;
}

void Measure(Resources& resources) {
  uint64_t descriptors = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++descriptors;
  ::closedir(folder);
  resources.descriptors = descriptors;
  uint64_t segments = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    segments += line.find("memfd:") != std::string::npos ? 1 : 0;
  resources.segments = segments;
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  statm >> size >> resident;
  resources.resident = resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "Threads:") continue;
    uint64_t threads = 0;
    status >> threads;
    resources.threads = threads;
  }
}

void Copy(const Resources& from, Resources& to) {
  to.descriptors = from.descriptors.load();
  to.threads = from.threads.load();
  to.segments = from.segments.load();
  to.resident = from.resident.load();
}

}  // namespace

Area::Area(bool shared) {
  if (shared) {
    buffer_ = *Allocate(kAreaSize);
    bytes_ = buffer_->bytes();
  } else {
    own_ = std::make_unique<std::byte[]>(kAreaSize);
    bytes_ = {own_.get(), kAreaSize};
  }
}

void Area::Fill(uint64_t seed) const {
  ForEachBlock(bytes_.size(), seed, [&](size_t at, const void* block) {
    std::memcpy(&bytes_[at], block, kBlock);
    return true;
  });
}

bool Area::Is(uint64_t seed) const {
  return ForEachBlock(bytes_.size(), seed, [&](size_t at, const void* block) {
    return std::memcmp(&bytes_[at], block, kBlock) == 0;
  });
}

Result<std::unique_ptr<Endpoint>> MakeEndpoint(const DataSetup& setup, const std::string& role,
                                               std::function<void(Connection)> on_connection) {
  EndpointOptions options;
  options.self = {"soak", role, "", setup.pair, 0};
  options.token = "a-token-of-sufficient-length";
  options.settings = setup.settings;
  options.on_connection = std::move(on_connection);
  return Endpoint::Create(std::move(options));
}

void EndRound(DataBoard::Role& role) {
  ++role.rounds;
  const uint64_t lived = ++role.life_rounds;
  if (lived % kSettled != 0) return;
  Measure(role.last);
  if (lived == kSettled) Copy(role.last, role.first);
}

bool Say(Connection& connection, const std::string& words) {
  return connection.Notify(words, Clock::now() + kFencePatience).ok();
}

std::optional<Words> Hear(DataBoard& board, Connection& connection) {
  while (!board.stop) {
    auto notice = connection.TakeNotice(Clock::now() + std::chrono::milliseconds(50));
    if (!notice.ok() && notice.status().code() == Code::kTimedOut) continue;
    if (!notice.ok()) return std::nullopt;
    std::istringstream in(*notice);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
  }
  return std::nullopt;
}

std::string Unhex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace weightcast::soak
