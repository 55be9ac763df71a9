// The process that plays the GPU of one folder (docs/testing.md). Started by the first process that calls
// cuInit there, with FAKE_CUDA's text as its argument; ends when nobody uses it any more.
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "fake_cuda/dispatch.h"
#include "fake_cuda/socket.h"

namespace weightcast::fake_cuda {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kIdle{20};
/// Whoever starts this may die before it comes.
constexpr milliseconds kGrace{5000};
constexpr int kPiecesBetween = 64;

class Server {
 public:
  Server(const Config& config, int listener)
      : config_(config), machine_(config), engine_(machine_), listener_(listener) {}

  void Run() {
    while (!Over()) {
      bool busy = true;
      for (int i = 0; i < kPiecesBetween && busy; ++i) busy = engine_.Step();
      if (!busy) {
        SetAsleep(1);
        busy = engine_.Step();
      }
      Poll(busy);
      SetAsleep(0);
      Bury();
    }
  }

 private:
  struct Connection {
    int socket;
    int process;  ///< Its pidfd.
    Client* client;
  };

  void SetAsleep(uint32_t asleep) {
    for (const auto& [id, client] : machine_.clients()) {
      client->area->asleep.store(asleep, std::memory_order_seq_cst);
    }
  }

  timespec Timeout(bool busy) {
    if (busy) return {};
    auto wait = std::chrono::nanoseconds(kIdle);
    if (engine_.NextDue() != Clock::time_point{}) {
      wait = std::min(wait, std::chrono::nanoseconds(engine_.NextDue() - Clock::now()));
    }
    for (const auto& [id, client] : machine_.clients()) {
      if (client->dead) wait = std::min(wait, std::chrono::nanoseconds(client->ends - Clock::now()));
    }
    return {.tv_sec = 0, .tv_nsec = std::max<long>(wait.count(), 0)};
  }

  void Poll(bool busy) {
    std::vector<pollfd> entries{{listener_, POLLIN, 0}};
    for (const Connection& each : connections_) {
      entries.push_back({each.socket, POLLIN, 0});
      entries.push_back({each.process, POLLIN, 0});
    }
    const timespec timeout = Timeout(busy);
    if (ppoll(entries.data(), entries.size(), &timeout, nullptr) <= 0) return;
    std::vector<Connection> kept;
    const auto before = connections_;
    for (size_t i = 0; i < before.size(); ++i) {
      const bool died = entries[2 * i + 2].revents != 0;
      const bool alive = entries[2 * i + 1].revents == 0 || Answer(before[i]);
      if (alive && !died) {
        kept.push_back(before[i]);
      } else {
        Mourn(before[i]);
      }
    }
    connections_ = kept;
    if (entries[0].revents != 0) Accept();
  }

  void Accept() {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    ucred peer{};
    socklen_t length = sizeof peer;
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    Request hello;
    int fd = -1;
    const bool came = ReceiveMessage(socket, &hello, sizeof hello, fd, true) == sizeof hello;
    const int process = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
    if (!came || process < 0 || hello.text != config_.text) {
      const Reply no{.result = 1};
      SendMessage(socket, &no, sizeof no, -1);
      close(socket);
      if (process >= 0) close(process);
      return;
    }
    const int shared = memfd_create("fake-cuda-area", MFD_CLOEXEC);
    Client& client = machine_.Join(peer.pid, NewArea(shared));
    const Reply welcome{.a = static_cast<uint64_t>(getpid())};
    SendMessage(socket, &welcome, sizeof welcome, shared);
    close(shared);
    connections_.push_back({socket, process, &client});
    joined_ = true;
  }

  /// False: the client is gone.
  bool Answer(const Connection& from) {
    Request request;
    int fd = -1;
    const ssize_t got = ReceiveMessage(from.socket, &request, sizeof request, fd, false);
    if (got != sizeof request) return got != 0;  // A bell, or nothing.
    if (request.kind == Ask::kLeave) {
      from.client->dead = true;
      from.client->ends = Clock::time_point{};
      Bury();
      const Reply done;
      SendMessage(from.socket, &done, sizeof done, -1);
      return false;
    }
    int moved = fd;
    const Reply reply = Dispatch(machine_, engine_, *from.client, request, moved);
    SendMessage(from.socket, &reply, sizeof reply, moved);
    if (fd >= 0) close(fd);
    if (moved >= 0) close(moved);
    return true;
  }

  /// Its copies go on for a while.
  void Mourn(const Connection& gone) {
    close(gone.socket);
    close(gone.process);
    for (const auto& [id, client] : machine_.clients()) {
      if (client.get() != gone.client || client->dead) continue;
      client->dead = true;
      client->ends = Clock::now() + milliseconds(config_.after_death_ms);
    }
  }

  void Bury() {
    std::vector<int> over;
    for (const auto& [id, client] : machine_.clients()) {
      if (client->dead && (engine_.Idle(*client) || Clock::now() >= client->ends)) over.push_back(id);
    }
    for (const int id : over) {
      Area* const area = machine_.clients().at(id)->area;
      engine_.Forget(*machine_.clients().at(id));
      machine_.Leave(id);
      DropArea(area);
    }
  }

  /// Nobody is left, and nobody is coming: then the folder is left as it was.
  bool Over() {
    if (!machine_.clients().empty()) return false;
    if (!joined_ && Clock::now() - started_ < kGrace) return false;
    const std::string lock_path = config_.dir + "/" + kLockName;
    const int lock = open(lock_path.c_str(), O_RDWR | O_CLOEXEC);
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0) {
      close(lock);
      return false;
    }
    const std::string log = config_.dir + "/" + kLogName;
    struct stat about{};
    if (stat(log.c_str(), &about) == 0 && about.st_size == 0) unlink(log.c_str());
    unlink((config_.dir + "/" + kSocketName).c_str());
    unlink(lock_path.c_str());
    return true;
  }

  const Config config_;
  Machine machine_;
  Engine engine_;
  const int listener_;
  std::vector<Connection> connections_;
  bool joined_ = false;
  const Clock::time_point started_ = Clock::now();
};

int Main(int argc, char** argv) {
  if (argc != 2) return 2;
  // What the process that started this had open is not ours to hold.
  close_range(3, ~0U, 0);
  const Config config = Config::Parse(argv[1]);
  const int listener = OpenSocket(config.dir, true);
  if (listener < 0) {
    std::perror("fake_gpu: no socket");
    return 1;
  }
  if (fork() != 0) _exit(0);
  setsid();
  GuardAccesses();
  Server(config, listener).Run();
  return 0;
}

}  // namespace
}  // namespace weightcast::fake_cuda

int main(int argc, char** argv) { return weightcast::fake_cuda::Main(argc, argv); }
