#include "device/copy_queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "fake_cuda/children.h"
#include "unit/device/fake/bytes.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

using fake_cuda::Eventually;

std::vector<uint64_t> TakeAll(CopyQueue& queue, bool ok = true) {
  std::vector<uint64_t> tickets;
  while (const auto finished = queue.TakeFinished()) {
    EXPECT_EQ(finished->ok, ok);
    tickets.push_back(static_cast<uint64_t>(finished->ticket));
  }
  return tickets;
}

/// A driver without the batch call; who writes the words is the parameter.
class CopyQueueTest : public ::testing::TestWithParam<bool> {
 protected:
  FakeWorld world{Config()};
  static std::string Config() { return GetParam() ? "driver=12000,writes=1" : "driver=12000,writes=0"; }
  void TearDown() override { world.Settle(); }
};
std::string WriterOf(const ::testing::TestParamInfo<bool>& written) {
  return written.param ? "WordsOfTheDevice" : "WordsOfTheWorker";
}
INSTANTIATE_TEST_SUITE_P(Words, CopyQueueTest, ::testing::Bool(), WriterOf);

TEST_P(CopyQueueTest, BatchesAreToldInOrderWhateverStreamIsFaster) {
  const Bytes bytes(world.host, 6000);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    fake_cuda_seed(seed);
    CopyQueue queue(world.worker, {.streams = 3});
    for (size_t i = 0; i < 6; ++i) {
      const std::array copies{bytes.At(i * 1000, 400), bytes.At(i * 1000 + 400, 600)};
      ASSERT_EQ(queue.Submit(copies), Ticket{i + 1});
    }
    std::vector<uint64_t> told;
    while (told.size() < 6) {
      world.StepWorker();
      fake_cuda_step(0);
      for (const uint64_t ticket : TakeAll(queue)) {
        told.push_back(ticket);
        EXPECT_TRUE(bytes.Arrived((ticket - 1) * 1000, 1000)) << "told before it has arrived";
      }
    }
    EXPECT_EQ(told, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(queue.unfinished_bytes(), 0U);
  }
}

TEST_P(CopyQueueTest, NothingIsToldBeforeItsLastByte) {
  const Bytes bytes(world.host, 300);
  CopyQueue queue(world.worker, {.streams = 1});
  const std::array copies{bytes.At(0, 100), bytes.At(100, 100), bytes.At(200, 100)};
  queue.Submit(copies);
  while (fake_cuda_calls("cuMemcpyAsync") < 3) world.StepWorker();
  for (int piece = 0; piece < 3; ++piece) {
    EXPECT_FALSE(queue.HasFinished());
    EXPECT_EQ(fake_cuda_step(0), 1);
    world.StepWorker();
  }
  EXPECT_TRUE(bytes.Arrived(0, 300));
  EXPECT_FALSE(queue.HasFinished()) << "the bytes are there, but the device has not said so";
  world.Settle();
  EXPECT_TRUE(queue.HasFinished());
  EXPECT_EQ(TakeAll(queue), std::vector<uint64_t>{1});
}

TEST_P(CopyQueueTest, TakesNoMoreThanItsLimits) {
  const Bytes bytes(world.host, 2048);
  CopyQueue queue(world.worker);
  for (size_t i = 0; i < CopyLimits::kBatches; ++i) {
    const std::array one{bytes.At(i, 1)};
    EXPECT_TRUE(queue.Submit(one));
  }
  const std::array one{bytes.At(2000, 1)};
  EXPECT_FALSE(queue.Submit(one)) << "a ninth batch";
  world.Settle();
  EXPECT_FALSE(queue.Submit(one)) << "over, but not told";
  EXPECT_EQ(TakeAll(queue).size(), CopyLimits::kBatches);

  std::vector<Copy> many;
  for (size_t i = 0; i < CopyLimits::kCopies + 1; ++i) many.push_back(bytes.At(i, 1));
  EXPECT_FALSE(queue.Submit(many)) << "more than any batch may have";
  const std::span<const Copy> copies(many);
  EXPECT_TRUE(queue.Submit(copies.first(1000)));
  EXPECT_TRUE(queue.Submit(copies.subspan(1000, CopyLimits::kCopies - 1000)));
  EXPECT_FALSE(queue.Submit(one)) << "copy 1,025";
  EXPECT_FALSE(queue.Submit({}));
  world.Settle();
  TakeAll(queue);
}

TEST_P(CopyQueueTest, BytesAreLimitedButOneLargeBatchPasses) {
  const Bytes bytes(world.host, CopyLimits::kBytes + 2);
  CopyQueue queue(world.worker);
  const std::array large{bytes.At(0, CopyLimits::kBytes + 1)};
  const std::array one{bytes.At(CopyLimits::kBytes + 1, 1)};
  EXPECT_TRUE(queue.Submit(large));
  EXPECT_FALSE(queue.Submit(one));
  world.Settle();
  TakeAll(queue);
  EXPECT_TRUE(bytes.Arrived(0, CopyLimits::kBytes + 1));
  EXPECT_TRUE(queue.Submit(one));
  EXPECT_FALSE(queue.Submit(large));
  world.Settle();
}

/// Copies of a batch may lie around the end of the queue's ring.
TEST_P(CopyQueueTest, ManyBatchesOfOddSizesArrive) {
  Bytes bytes(world.host, 1000);
  CopyQueue queue(world.worker);
  for (size_t round = 0; round < 40; ++round) {
    bytes.Wipe(0, bytes.length());
    std::vector<Copy> copies;
    for (size_t i = 0; i < 500 - round; ++i) copies.push_back(bytes.At(2 * i, 2));
    ASSERT_TRUE(queue.Submit(copies));
    world.Settle(round + 1);
    ASSERT_EQ(TakeAll(queue), std::vector<uint64_t>{round + 1});
    ASSERT_TRUE(bytes.Arrived(0, copies.size() * 2));
  }
}

TEST_P(CopyQueueTest, ACallThatFailsEndsTheQueueWhenWhatWasBegunIsOver) {
  const Bytes bytes(world.host, 400);
  CopyQueue queue(world.worker);
  const std::array first{bytes.At(0, 100)};
  const std::array second{bytes.At(100, 100), bytes.At(200, 100)};
  queue.Submit(first);
  while (fake_cuda_calls("cuEventRecord") == 0) world.StepWorker();
  queue.Submit(second);
  fake_cuda_fail(0, "cuMemcpyAsync", 2, drivers::CUDA_ERROR_INVALID_VALUE);
  for (int turn = 0; turn < 10; ++turn) world.StepWorker();
  EXPECT_FALSE(queue.HasFinished()) << "the first batch and a half of the second still run";
  EXPECT_TRUE(queue.failure().ok());
  world.Settle();
  EXPECT_TRUE(bytes.Arrived(0, 200));
  EXPECT_FALSE(bytes.Arrived(200, 100));
  EXPECT_EQ(TakeAll(queue, false), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(queue.failure().code(), Code::kInternal);
  EXPECT_NE(queue.failure().message().find("cuMemcpyAsync"), std::string::npos) << queue.failure().message();
  EXPECT_FALSE(world.worker->health()->lost());

  const uint64_t copies = fake_cuda_calls("cuMemcpyAsync");
  EXPECT_TRUE(queue.Submit(first)) << "taken, and over at once";
  world.StepWorker();
  EXPECT_EQ(TakeAll(queue, false), std::vector<uint64_t>{3});
  EXPECT_EQ(fake_cuda_calls("cuMemcpyAsync"), copies) << "nothing is tried again";
}

TEST_P(CopyQueueTest, ALostContextEndsEveryQueueOfTheDevice) {
  world.host.leaves_things = true;
  const Bytes bytes(world.host, 300);
  CopyQueue queue(world.worker);
  CopyQueue idle(world.worker);
  const std::array first{bytes.At(0, 100)};
  const std::array second{bytes.At(100, 100)};
  queue.Submit(first);
  queue.Submit(second);
  while (fake_cuda_calls("cuMemcpyAsync") < 2) world.StepWorker();
  fake_cuda_lose(0, 0, drivers::CUDA_ERROR_ECC_UNCORRECTABLE, 0);
  while (!queue.HasFinished()) world.StepWorker();
  EXPECT_EQ(TakeAll(queue, false), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(queue.failure().code(), Code::kInternal);
  EXPECT_TRUE(world.worker->health()->lost());
  world.StepWorker();
  EXPECT_TRUE(idle.Submit(first));
  EXPECT_EQ(TakeAll(idle, false), std::vector<uint64_t>{1});
  EXPECT_EQ(fake_cuda_calls("cuMemcpyAsync"), 2U) << "nothing is begun any more";
}

TEST_P(CopyQueueTest, ADriverThatGivesNoStreamFailsTheBatchesThatWait) {
  const Bytes bytes(world.host, 100);
  CopyQueue queue(world.worker);
  const std::array copies{bytes.At(0, 100)};
  queue.Submit(copies);
  fake_cuda_fail(0, "cuEventCreate", 3, drivers::CUDA_ERROR_OUT_OF_MEMORY);
  world.Settle();
  EXPECT_EQ(TakeAll(queue, false), std::vector<uint64_t>{1});
  EXPECT_EQ(fake_cuda_live(0).events, 0U) << "what was made before is given back";
  EXPECT_EQ(fake_cuda_live(0).streams, 0U);
}

TEST_P(CopyQueueTest, AQueueThatGoesLeavesItsBegunCopiesToTheWorker) {
  const Bytes bytes(world.host, 200);
  {
    CopyQueue queue(world.worker);
    const std::array begun{bytes.At(0, 100)};
    const std::array waits{bytes.At(100, 100)};
    queue.Submit(begun);
    while (fake_cuda_calls("cuEventRecord") == 0) world.StepWorker();
    queue.Submit(waits);
  }
  world.StepWorker();
  EXPECT_GT(fake_cuda_live(0).streams, 0U) << "its stream is in use";
  EXPECT_GT(fake_cuda_live(0).events, 0U);
  world.Settle();
  EXPECT_EQ(fake_cuda_live(0).streams, 0U);
  EXPECT_EQ(fake_cuda_live(0).events, 0U);
  EXPECT_TRUE(bytes.Arrived(0, 100));
  EXPECT_FALSE(bytes.Arrived(100, 100)) << "was not begun";
}

/// Progress, worker and device at once: what is told has arrived.
TEST_P(CopyQueueTest, ThreeThreadsMoveThousandsOfBatches) {
  constexpr size_t kBatches = 3000;
  auto threaded = Worker::Create(world.gpus->Retain(0).value()).value();
  std::atomic<bool> end{false};
  std::thread gpu([&] {
    while (!end) {
      if (fake_cuda_step(0) == 0) std::this_thread::yield();
    }
  });
  {
    Bytes bytes(world.host, CopyLimits::kBatches * 64);
    {
      CopyQueue queue(threaded);
      size_t given = 0;
      size_t told = 0;
      while (told < kBatches) {
        const size_t at = given % CopyLimits::kBatches * 64;
        const std::array copies{bytes.At(at, 32), bytes.At(at + 32, 32)};
        if (given < kBatches && queue.Submit(copies)) ++given;
        while (const auto finished = queue.TakeFinished()) {
          ASSERT_TRUE(finished->ok);
          const size_t where = (static_cast<uint64_t>(finished->ticket) - 1) % CopyLimits::kBatches * 64;
          ASSERT_TRUE(bytes.Arrived(where, 64));
          bytes.Wipe(where, 64);
          ++told;
        }
      }
    }
    threaded.reset();  // Gives streams and events back.
  }
  end = true;
  gpu.join();
}

TEST(CopyQueueOptionsTest, TheBatchCallCanBeLeftOut) {
  FakeWorld world("driver=13000");
  {
    const Bytes bytes(world.host, 600);
    CopyQueue queue(world.worker);
    CopyQueue without(world.worker, {.use_batch_call = false});
    const std::array three{bytes.At(0, 100), bytes.At(100, 100), bytes.At(200, 100)};
    const std::array others{bytes.At(300, 100), bytes.At(400, 100), bytes.At(500, 100)};
    ASSERT_TRUE(queue.Submit(three));
    ASSERT_TRUE(without.Submit(others));
    world.Settle();
    EXPECT_EQ(fake_cuda_calls("cuMemcpyBatchAsync"), 1U);
    EXPECT_EQ(fake_cuda_calls("cuMemcpyAsync"), 3U);
    EXPECT_EQ(TakeAll(queue), std::vector<uint64_t>{1});
    EXPECT_EQ(TakeAll(without), std::vector<uint64_t>{1});
    EXPECT_TRUE(bytes.Arrived(0, 600));
  }
  world.Settle();
}

/// Progress reads the device's words itself, so a worker that is stuck in the driver holds up only what
/// comes.
TEST(CopyQueueThreadTest, WhatIsUnderWayEndsWhileADriverCallBlocks) {
  const fake_cuda::Folder folder;
  FakeWorld world(folder.Config(), Worker::Mode::kThread);
  const auto bytes = std::make_unique<Bytes>(world.host, 200);
  auto queue = std::make_unique<CopyQueue>(world.worker);
  const std::array first{bytes->At(0, 100)};
  const std::array second{bytes->At(100, 100)};
  fake_cuda_hold(0);
  queue->Submit(first);
  ASSERT_TRUE(Eventually([] { return fake_cuda_calls("cuEventRecord") == 1; })) << "it is not begun";
  fake_cuda_block(0, "cuMemHostAlloc", 1, 600'000);
  world.worker->Run([&cuda = *world.host.cuda] {
    void* pinned = nullptr;
    EXPECT_EQ(cuda.MemHostAlloc(&pinned, 1, 0), drivers::CUDA_SUCCESS);
    EXPECT_EQ(cuda.MemFreeHost(pinned), drivers::CUDA_SUCCESS);
  });
  ASSERT_TRUE(Eventually([] { return fake_cuda_blocked(0) == 1; }));
  EXPECT_FALSE(queue->HasFinished());
  fake_cuda_release(0);
  EXPECT_TRUE(Eventually([&] { return queue->HasFinished(); }));
  EXPECT_EQ(fake_cuda_blocked(0), 1) << "and the worker is still stuck";
  EXPECT_EQ(TakeAll(*queue), std::vector<uint64_t>{1});
  EXPECT_TRUE(bytes->Arrived(0, 100));
  EXPECT_TRUE(queue->Submit(second)) << "and nobody waits";
  EXPECT_FALSE(queue->HasFinished());
  fake_cuda_unblock(0);
  EXPECT_TRUE(Eventually([&] { return queue->HasFinished(); }));
  EXPECT_EQ(TakeAll(*queue), std::vector<uint64_t>{2});
  queue.reset();
  EXPECT_TRUE(Eventually([] { return fake_cuda_live(0).streams == 0; }));
}

}  // namespace
}  // namespace weightcast::device
