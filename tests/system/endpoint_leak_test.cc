// What connections, slow peers and forks cost: nothing that stays.
#include <dirent.h>

#include <fstream>
#include <mutex>

#include "system/endpoint_linked.h"

namespace weightcast::system_test {
namespace {

/// What this process holds of what the machine has.
struct Held {
  size_t descriptors = 0;
  size_t threads = 0;
  size_t segments = 0;  ///< Mappings of shared memory.
  size_t resident = 0;  ///< Bytes.
};

Held Measure() {
  Held held;
  const auto count = [](const char* path) {
    size_t entries = 0;
    DIR* folder = opendir(path);
    while (readdir(folder) != nullptr) ++entries;
    closedir(folder);
    return entries;
  };
  held.descriptors = count("/proc/self/fd");
  held.threads = count("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    held.segments += line.find("memfd:") != std::string::npos ? 1 : 0;
  std::ifstream statm("/proc/self/statm");
  size_t size = 0;
  statm >> size >> held.resident;
  held.resident *= static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return held;
}

/// An endpoint of this process that counts.
struct Party {
  explicit Party(const PeerSetup& setup, std::string role) {
    EndpointOptions options = OptionsOf(setup, std::move(role));
    options.on_connection = [this](Connection connection) {
      const std::lock_guard lock(mutex);
      accepted.emplace(std::move(connection));
    };
    options.on_disconnect = [this](const Identity&, const Status&) { ++ends; };
    endpoint = *Endpoint::Create(std::move(options));
  }
  Connection Accepted() {
    EXPECT_TRUE(Eventually([&] {
      const std::lock_guard lock(mutex);
      return accepted.has_value();
    }));
    const std::lock_guard lock(mutex);
    Connection connection = *accepted;
    accepted.reset();
    return connection;
  }
  std::mutex mutex;
  std::optional<Connection> accepted;
  std::atomic<size_t> ends{0};
  std::unique_ptr<Endpoint> endpoint;
};

class EndpointLeaks : public ::testing::TestWithParam<PeerSetup> {};
INSTANTIATE_TEST_SUITE_P(Paths, EndpointLeaks,
                         ::testing::Values(PeerSetup{.transport = "shm", .shared = true},
                                           PeerSetup{.transport = "shm", .shared = false},
                                           PeerSetup{.transport = "tcp", .shared = false}),
                         NameOf);

/// Each with a transfer and a grant, closed by either side, some in the middle of it.
TEST_P(EndpointLeaks, AThousandConnectionsLeakNothing) {
  constexpr size_t kSize = 64 << 10;
  constexpr size_t kSettled = 200;
  Party a(GetParam(), "a");
  Party b(GetParam(), "b");
  Area source(kSize, GetParam().shared);
  Area target(kSize, GetParam().shared);
  auto local = a.endpoint->Register(source.bytes, Access::kLocal);
  auto remote = b.endpoint->Register(target.bytes, Access::kReadWrite);
  ASSERT_TRUE(local.ok() && remote.ok());
  // Sockets linger for a second, until the peer has read the last word.
  const size_t idle = Measure().descriptors + 2;
  const auto settled = [&] { return Eventually([&] { return Measure().descriptors <= idle; }); };
  Held before;
  for (size_t i = 1; i <= 1000; ++i) {
    auto to_b = a.endpoint->Connect(b.endpoint->Addresses(), b.endpoint->self(), Soon());
    ASSERT_TRUE(to_b.ok()) << to_b.status().ToString();
    Connection to_a = b.Accepted();
    ASSERT_TRUE(to_a.OpenGrant({.transfers = 1}).ok());
    const Piece piece{local->Whole(), to_b->Import(remote->Descriptor())->Whole()};
    auto write = to_b->Write({&piece, 1}, {});
    ASSERT_TRUE(write.ok());
    if (i % 3 != 0) {
      ASSERT_TRUE(write->Wait().ok());
    }
    (i % 2 == 0 ? to_a : *to_b).Close();
    (void)write->WaitFenced(Soon());
    EXPECT_TRUE(write->fenced());
    ASSERT_TRUE(Eventually([&] { return a.ends == i && b.ends == i; }));
    if (i != kSettled) continue;
    ASSERT_TRUE(settled()) << idle << " -> " << Measure().descriptors << " descriptors";
    before = Measure();
  }
  ASSERT_TRUE(settled()) << idle << " -> " << Measure().descriptors << " descriptors";
  const Held after = Measure();
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_LE(after.segments, before.segments);
  if (!kSanitized) {
    EXPECT_LE(after.resident, before.resident + (4 << 20));
  }
  EXPECT_TRUE(a.endpoint->Peers().empty() && b.endpoint->Peers().empty());
}

/// Gigabytes for a peer that stands still: the transfer waits, and nothing is kept of it but where it is.
TEST_P(EndpointLeaks, AReceiverThatStandsStillCostsNoMemory) {
  constexpr size_t kSize = 16 << 20;
  Linked linked(GetParam(), kSize);
  Fill(linked.area.bytes, 1);
  const std::vector<Piece> pieces(256, linked.At(0, kSize));  // 4 GiB.
  const Piece once = linked.At(0, kSize);
  ASSERT_TRUE(linked.connection->Write({&once, 1}, {})->Wait().ok());
  linked.peer.Signal(SIGSTOP);
  const Held before = Measure();
  auto write = linked.connection->Write(pieces, {});
  ASSERT_TRUE(write.ok());
  for (int i = 0; i < 10; ++i) {
    (void)write->Wait(Clock::now() + FromSeconds(0.02));
    const Held now = Measure();
    EXPECT_EQ(now.descriptors, before.descriptors);
    if (!kSanitized) {
      EXPECT_LE(now.resident, before.resident + (8 << 20));
    }
  }
  write->Cancel();
  linked.peer.Signal(SIGCONT);
  (void)write->WaitFenced(Soon());
  EXPECT_TRUE(write->fenced());
  EXPECT_TRUE(linked.connection->status().ok());
}

/// Children are forked while threads write. They are refused, hold our descriptors for a while, and disturb
/// nobody: not the transfers, and not the end.
TEST_P(EndpointLeaks, ForksAmongThreadsThatWriteDisturbNobody) {
  if (kSanitized) GTEST_SKIP() << "sanitizers do not know forks of processes with threads";
  constexpr size_t kSize = 1 << 20;
  constexpr size_t kThreads = 3;
  Linked linked(GetParam(), kThreads * kSize);
  Fill(linked.area.bytes, 1);
  std::atomic<bool> stop{false};
  std::atomic<size_t> written{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Piece piece = linked.At(i * kSize, kSize);
      while (!stop) {
        auto write = linked.connection->Write({&piece, 1}, {});
        if (!write.ok() || !write->Wait().ok()) return;
        ++written;
      }
    });
  }
  std::vector<test::Process> children;
  for (int i = 0; i < 10; ++i) {
    const size_t then = written;
    children.push_back(test::Process::Fork([&] {
      const bool refused = linked.connection->Write({}, {}).status().code() == Code::kInternal &&
                           linked.connection->Notify("x").code() == Code::kInternal;
      while (refused && i % 2 == 1) pause();
      return refused ? 0 : 1;
    }));
    EXPECT_TRUE(Eventually([&] { return written > then + kThreads; }));
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  linked.peer.Do("filled 1");
  // The children still hold copies of every socket; the peer hears of the end all the same.
  linked.connection->Close();
  linked.peer.Do("disconnected");
  for (size_t i = 0; i < children.size(); ++i) {
    if (i % 2 == 1) {
      EXPECT_FALSE(children[i].Code()) << "not refused";
      children[i].Kill();
    } else {
      EXPECT_EQ(children[i].Wait(), 0);
    }
  }
}

}  // namespace
}  // namespace weightcast::system_test
