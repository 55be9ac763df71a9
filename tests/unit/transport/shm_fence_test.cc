// The fence: once it is over, nothing of the revoked grant lands, whatever the moment.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "base/process.h"
#include "child_process.h"
#include "transport/shm/fence.h"
#include "weightcast/clock.h"

namespace weightcast::transport::shm {
namespace {

constexpr size_t kBytes = 16 * 1024;
/// So long each torture goes on: how many rounds that makes is the machine's affair.
constexpr Duration kTorture = std::chrono::seconds(2);

/// What writer and target share.
struct Shared {
  Word grant{0};
  Word busy{0};
  Word copies{0};
  Word stop{0};
  std::array<char, kBytes> memory{};
};

/// Writes under whatever grant it last received, until told to stop.
void WriteForEver(Shared& shared, const Word& heard) {
  WriterFence fence(shared.busy);
  for (int round = 1; shared.stop.load() == 0; ++round) {
    const uint64_t id = heard.load();
    fence.Enter();
    if (shared.grant.load(std::memory_order_seq_cst) == id && id != 0) {
      std::memset(shared.memory.data(), round & 0x7f, kBytes);
      shared.copies.fetch_add(1);
    }
    fence.Leave();
  }
}

TEST(ShmFenceTest, AnIdleWriterIsOverAtOnce) {
  Word busy{0};
  EXPECT_TRUE(FenceWait(busy).Over(busy));
  WriterFence writer(busy);
  writer.Enter();
  const FenceWait wait(busy);
  EXPECT_FALSE(wait.Over(busy));
  writer.Leave();
  EXPECT_TRUE(wait.Over(busy));
  writer.Enter();
  EXPECT_TRUE(wait.Over(busy)) << "the next piece looks at the grant again";
  writer.Leave();
}

TEST(ShmFenceTest, TheWriterKeepsItsOwnCount) {
  Word busy{0};
  WriterFence writer(busy);
  writer.Enter();
  busy.store(77);  // A target that scribbles on the word must not turn odd and even round.
  writer.Leave();
  EXPECT_EQ(busy.load() % 2, 0U);
}

/// The memory is plain: under the thread sanitizer a fence that lets anything through is a data race too.
TEST(ShmFenceTest, NothingLandsAfterTheFenceBetweenTwoThreads) {
  auto shared = std::make_unique<Shared>();
  Word heard{0};
  std::thread writer([&] { WriteForEver(*shared, heard); });
  std::minstd_rand random(3);
  const auto end = Clock::now() + kTorture;
  for (uint64_t id = 1; id <= 10 || Clock::now() < end; ++id) {
    shared->grant.store(id, std::memory_order_seq_cst);
    heard.store(id);
    const uint64_t until = shared->copies.load() + random() % 3;
    while (shared->copies.load() < until) std::this_thread::yield();
    shared->grant.store(0, std::memory_order_seq_cst);
    const FenceWait fence(shared->busy);
    while (!fence.Over(shared->busy)) std::this_thread::yield();
    std::memset(shared->memory.data(), 0x55, kBytes / 2);
    std::memset(shared->memory.data() + kBytes / 2, 0xaa, kBytes / 2);
    for (uint64_t spins = random() % 2000; spins > 0; --spins) (void)shared->busy.load();
    const char* const begin = shared->memory.data();
    const char* const half = begin + kBytes / 2;
    ASSERT_TRUE(std::all_of(begin, half, [](char byte) { return byte == 0x55; }));
    ASSERT_TRUE(std::all_of(half, half + kBytes / 2, [](char byte) { return byte == char(0xaa); }));
  }
  shared->stop.store(1);
  writer.join();
  EXPECT_GT(shared->copies.load(), 0U);
}

class Writer {
 public:
  Writer(Shared& shared, const Word& heard)
      : process_(test::Process::Fork([&] {
          WriteForEver(shared, heard);
          return 0;
        })) {
    auto process = OpenPidFd(process_.pid());
    if (process.ok()) pidfd_ = std::move(process).value();
  }
  [[nodiscard]] bool started() const { return pidfd_.valid(); }
  void Kill() const { process_.Signal(SIGKILL); }
  [[nodiscard]] bool dead() const { return HasExited(pidfd_); }

 private:
  test::Process process_;
  UniqueFd pidfd_;
};

/// The writer is another process that is killed at random moments, most often in the middle of a copy.
TEST(ShmFenceTest, NothingLandsAfterTheFenceOrTheDeathOfAProcess) {
  struct All {
    Shared shared;
    Word heard{0};
  };
  void* const raw = mmap(nullptr, sizeof(All), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(raw, MAP_FAILED);
  All& all = *new (raw) All;
  Shared& shared = all.shared;
  std::minstd_rand random(5);
  uint64_t id = 0;
  uint64_t caught_busy = 0;
  const auto end = Clock::now() + kTorture;
  for (int process = 0; process < 3 || Clock::now() < end; ++process) {
    shared.busy.store(0);
    const Writer writer(shared, all.heard);
    ASSERT_TRUE(writer.started());
    for (int round = 0; round < 10; ++round) {
      shared.grant.store(++id, std::memory_order_seq_cst);
      all.heard.store(id);
      const uint64_t until = shared.copies.load() + 1 + random() % 5;
      while (shared.copies.load() < until) std::this_thread::yield();
      const bool killed = round == 9;
      if (killed) writer.Kill();
      shared.grant.store(0, std::memory_order_seq_cst);
      const FenceWait fence(shared.busy);
      while (!fence.Over(shared.busy) && !writer.dead()) std::this_thread::yield();
      if (killed) caught_busy += shared.busy.load() % 2;
      std::array<char, kBytes> before;
      std::memcpy(before.data(), shared.memory.data(), kBytes);
      for (uint64_t spins = random() % 20'000; spins > 0; --spins) (void)shared.busy.load();
      ASSERT_EQ(std::memcmp(before.data(), shared.memory.data(), kBytes), 0);
    }
  }
  RecordProperty("killed_while_busy", static_cast<int>(caught_busy));
  munmap(raw, sizeof(All));
}

}  // namespace
}  // namespace weightcast::transport::shm
