#include "endpoint/lingering.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace weightcast::endpoint {
namespace {

constexpr Duration kLinger = std::chrono::seconds(1);
/// Sockets that linger: at most this many, and no more than their share of the descriptors.
constexpr size_t kMaxLingering = 1024;
constexpr size_t kLingeringShare = 16;
/// Beyond this only peers that have proven themselves are waited for.
constexpr size_t kMaxUnprovenLingering = 64;
/// Read from one of them before others have their turn.
constexpr int kReadsAtOnce = 16;

size_t MostLingering() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMaxLingering;
  return std::min<size_t>(kMaxLingering, limit.rlim_cur / kLingeringShare);
}

}  // namespace

void LingeringChannels::Add(Channel channel, bool proven) {
  // What does not fit into the socket now will not be waited for.
  const size_t most = proven ? MostLingering() : std::min(MostLingering(), kMaxUnprovenLingering);
  if (channel.waiting() || entries_.size() >= most || shutdown(channel.fd(), SHUT_WR) != 0) return;
  const uint64_t id = ++last_;
  auto key = sockets_.Watch(channel.fd(), EPOLLIN, [this, id](uint32_t) { Read(id); });
  if (!key.ok()) return;
  Entry& entry = entries_.emplace(id, Entry{std::move(channel), *key, {}}).first->second;
  entry.limit = timers_.Add(In(kLinger), [this, id] { End(entries_.find(id)); });
}

/// What is unread when a socket closes would reset it, and the shutdown message could be lost with it.
void LingeringChannels::CloseAll() {
  for (auto next = entries_.begin(); next != entries_.end();) Read((next++)->first);
  while (!entries_.empty()) End(entries_.begin());
}

void LingeringChannels::Read(uint64_t id) {
  const auto found = entries_.find(id);
  std::array<char, 4096> ignored;
  ssize_t count = 1;
  for (int i = 0; i < kReadsAtOnce && count > 0; ++i) {
    count = recv(found->second.channel.fd(), ignored.data(), ignored.size(), MSG_DONTWAIT);
  }
  if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) return;
  End(found);
}

void LingeringChannels::End(std::map<uint64_t, Entry>::iterator ended) {
  sockets_.Forget(ended->second.key);
  timers_.Cancel(ended->second.limit);
  entries_.erase(ended);
}

}  // namespace weightcast::endpoint
