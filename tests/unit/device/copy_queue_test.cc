#include "device/copy_queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "unit/device/bytes.h"
#include "unit/device/world.h"

namespace weightcast::device {
namespace {

std::vector<uint64_t> TakeAll(CopyQueue& queue, bool ok = true) {
  std::vector<uint64_t> tickets;
  while (const auto finished = queue.TakeFinished()) {
    EXPECT_EQ(finished->ok, ok);
    tickets.push_back(static_cast<uint64_t>(finished->ticket));
  }
  return tickets;
}

class CopyQueueTest : public ::testing::TestWithParam<bool> {
 protected:
  CopyQueueTest() { world.cuda->write_value = GetParam(); }
  World world;
};
std::string WriterOf(const ::testing::TestParamInfo<bool>& written) {
  return written.param ? "WordsOfTheDevice" : "WordsOfTheWorker";
}
INSTANTIATE_TEST_SUITE_P(Words, CopyQueueTest, ::testing::Bool(), WriterOf);

TEST_P(CopyQueueTest, BatchesAreToldInOrderWhateverStreamIsFaster) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Bytes bytes(6000);
    CopyQueue queue(world.worker);
    for (size_t i = 0; i < 6; ++i) {
      const std::array copies{bytes.At(i * 1000, 400), bytes.At(i * 1000 + 400, 600)};
      ASSERT_EQ(queue.Submit(copies), Ticket{i + 1});
    }
    std::vector<uint64_t> told;
    for (uint32_t turn = 0; told.size() < 6; ++turn) {
      world.worker->Step();
      world.cuda->Step(seed * 31 + turn * turn * 7);
      for (const uint64_t ticket : TakeAll(queue)) {
        told.push_back(ticket);
        EXPECT_TRUE(bytes.Arrived((ticket - 1) * 1000, 1000)) << "told before it has arrived";
      }
    }
    EXPECT_EQ(told, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(queue.unfinished(), 0U);
  }
}

TEST_P(CopyQueueTest, NothingIsToldBeforeItsLastByte) {
  Bytes bytes(300);
  CopyQueue queue(world.worker, {.streams = 1});
  const std::array copies{bytes.At(0, 100), bytes.At(100, 100), bytes.At(200, 100)};
  queue.Submit(copies);
  world.worker->Step();
  for (int piece = 0; piece < 3; ++piece) {
    EXPECT_FALSE(queue.HasFinished());
    world.cuda->Step(0);
    world.worker->Step();
  }
  EXPECT_FALSE(queue.HasFinished()) << "the bytes are there, but the device has not said so";
  world.Settle();
  EXPECT_TRUE(queue.HasFinished());
  EXPECT_EQ(TakeAll(queue), std::vector<uint64_t>{1});
}

TEST_P(CopyQueueTest, TakesNoMoreThanItsLimits) {
  Bytes bytes(8192);
  CopyQueue queue(world.worker);
  const std::array one{bytes.At(0, 1)};
  for (size_t i = 0; i < CopyLimits::kBatches; ++i) EXPECT_TRUE(queue.Submit(one));
  EXPECT_FALSE(queue.Submit(one)) << "a ninth batch";
  world.Settle();
  EXPECT_FALSE(queue.Submit(one)) << "over, but not told";
  EXPECT_EQ(TakeAll(queue).size(), CopyLimits::kBatches);

  std::vector<Copy> many(CopyLimits::kCopies - 1, bytes.At(0, 1));
  EXPECT_TRUE(queue.Submit(many));
  EXPECT_TRUE(queue.Submit(one));
  EXPECT_FALSE(queue.Submit(one)) << "copy 1,025";
  many.resize(CopyLimits::kCopies + 1);
  world.Settle();
  TakeAll(queue);
  EXPECT_FALSE(queue.Submit(many)) << "more than any batch may have";
  EXPECT_FALSE(queue.Submit({}));
}

TEST_P(CopyQueueTest, BytesAreLimitedButOneLargeBatchPasses) {
  std::vector<std::byte> from(CopyLimits::kBytes + 1);
  std::vector<std::byte> to(from.size());
  CopyQueue queue(world.worker);
  const std::array all{Copy{to.data(), from.data(), from.size()}};
  const std::array one{Copy{to.data(), from.data(), 1}};
  EXPECT_TRUE(queue.Submit(all));
  EXPECT_FALSE(queue.Submit(one));
  world.Settle();
  TakeAll(queue);
  EXPECT_TRUE(queue.Submit(one));
  EXPECT_FALSE(queue.Submit(all));
  world.Settle();
}

/// Copies of a batch may lie around the end of the queue's ring.
TEST_P(CopyQueueTest, ManyBatchesOfOddSizesArrive) {
  Bytes bytes(1000);
  CopyQueue queue(world.worker);
  for (size_t round = 0; round < 40; ++round) {
    std::fill(bytes.to.begin(), bytes.to.end(), std::byte{0});
    std::vector<Copy> copies;
    for (size_t i = 0; i < 500 - round; ++i) copies.push_back(bytes.At(2 * i, 2));
    ASSERT_TRUE(queue.Submit(copies));
    world.Settle(static_cast<uint32_t>(round));
    ASSERT_EQ(TakeAll(queue), std::vector<uint64_t>{round + 1});
    ASSERT_TRUE(bytes.Arrived(0, copies.size() * 2));
  }
}

TEST_P(CopyQueueTest, ABatchIsOneCallWhereTheDriverHasIt) {
  world.cuda->batch = true;
  Bytes bytes(300);
  CopyQueue queue(world.worker);
  CopyQueue without(world.worker, {.use_batch_call = false});
  const std::array three{bytes.At(0, 100), bytes.At(100, 100), bytes.At(200, 100)};
  ASSERT_TRUE(queue.Submit(three));
  ASSERT_TRUE(without.Submit(three));
  world.Settle();
  EXPECT_EQ(world.cuda->batches(), 1);
  EXPECT_EQ(TakeAll(queue), std::vector<uint64_t>{1});
  EXPECT_EQ(TakeAll(without), std::vector<uint64_t>{1});
  EXPECT_TRUE(bytes.Arrived(0, 300));
}

TEST_P(CopyQueueTest, ACallThatFailsEndsTheQueueWhenWhatWasBegunIsOver) {
  Bytes bytes(400);
  CopyQueue queue(world.worker);
  const std::array first{bytes.At(0, 100)};
  const std::array second{bytes.At(100, 100), bytes.At(200, 100)};
  queue.Submit(first);
  world.worker->Step();
  world.worker->Step();
  queue.Submit(second);
  world.cuda->FailNext("cuMemcpyAsync", CUDA_ERROR_INVALID_VALUE);
  for (int turn = 0; turn < 10; ++turn) world.worker->Step();
  EXPECT_FALSE(queue.HasFinished()) << "the first batch still runs";
  EXPECT_TRUE(queue.failure().ok());
  world.Settle();
  EXPECT_EQ(TakeAll(queue, false), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(queue.failure().code(), Code::kInternal);
  EXPECT_NE(queue.failure().message().find("cuMemcpyAsync"), std::string::npos) << queue.failure().message();
  EXPECT_FALSE(world.worker->health()->lost());

  const int calls = world.cuda->calls();
  EXPECT_TRUE(queue.Submit(first)) << "taken, and over at once";
  world.worker->Step();
  EXPECT_EQ(TakeAll(queue, false), std::vector<uint64_t>{3});
  EXPECT_EQ(world.cuda->calls(), calls) << "nothing is tried again";
}

TEST_P(CopyQueueTest, ALostContextEndsEveryQueueOfTheDevice) {
  Bytes bytes(200);
  {
    CopyQueue queue(world.worker);
    CopyQueue idle(world.worker);
    const std::array copies{bytes.At(0, 100)};
    queue.Submit(copies);
    queue.Submit(copies);
    world.worker->Step();
    world.worker->Step();
    world.cuda->Lose(CUDA_ERROR_ECC_UNCORRECTABLE);
    while (!queue.HasFinished()) world.worker->Step();
    EXPECT_EQ(TakeAll(queue, false), (std::vector<uint64_t>{1, 2}));
    EXPECT_EQ(queue.failure().code(), Code::kInternal);
    EXPECT_TRUE(world.worker->health()->lost());
    world.worker->Step();
    EXPECT_TRUE(idle.Submit(copies));
    EXPECT_EQ(TakeAll(idle, false), std::vector<uint64_t>{1});
  }
  world.Settle();
}

TEST_P(CopyQueueTest, ADriverThatGivesNoStreamFailsTheBatchesThatWait) {
  Bytes bytes(100);
  CopyQueue queue(world.worker);
  const std::array copies{bytes.At(0, 100)};
  queue.Submit(copies);
  world.cuda->FailNext("cuEventCreate", CUDA_ERROR_OUT_OF_MEMORY);
  world.Settle();
  EXPECT_EQ(TakeAll(queue, false), std::vector<uint64_t>{1});
}

TEST_P(CopyQueueTest, AQueueThatGoesLeavesItsBegunCopiesToTheWorker) {
  Bytes bytes(200);
  {
    CopyQueue queue(world.worker);
    const std::array begun{bytes.At(0, 100)};
    const std::array waits{bytes.At(100, 100)};
    queue.Submit(begun);
    world.worker->Step();
    world.worker->Step();
    queue.Submit(waits);
  }
  world.worker->Step();
  EXPECT_GT(world.cuda->live(), 0) << "its stream is in use";
  world.Settle();
  EXPECT_EQ(world.cuda->live(), 0);
  EXPECT_TRUE(bytes.Arrived(0, 100));
  EXPECT_FALSE(bytes.Arrived(100, 100)) << "was not begun";
}

/// Progress, worker and device at once: what is told has arrived.
TEST_P(CopyQueueTest, ThreeThreadsMoveThousandsOfBatches) {
  constexpr size_t kBatches = 3000;
  const auto cuda = std::make_shared<SimpleCuda>();
  cuda->write_value = GetParam();
  const auto threaded = Worker::Create(Gpus::Create(cuda).value()->Retain(0).value()).value();
  std::atomic<bool> end{false};
  std::thread gpu([&] {
    for (uint32_t seed = 0; !end; seed += 7) {
      if (!cuda->Step(seed)) std::this_thread::yield();
    }
  });
  {
    CopyQueue queue(threaded);
    Bytes bytes(CopyLimits::kBatches * 64);
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
        std::fill_n(bytes.to.begin() + static_cast<std::ptrdiff_t>(where), 64, std::byte{0});
        ++told;
      }
    }
  }
  end = true;
  gpu.join();
}

/// Progress reads the device's words itself, so a worker that is stuck in the driver holds up only what
/// comes.
TEST(CopyQueueThreadTest, WhatIsUnderWayEndsWhileADriverCallBlocks) {
  Bytes bytes(100);
  World world(Worker::Mode::kThread);
  CopyQueue queue(world.worker);
  const std::array copies{bytes.At(0, 100)};
  queue.Submit(copies);
  while (!world.cuda->Step(0)) std::this_thread::yield();  // Begun: the copy is in the stream.
  world.cuda->Block("cuMemHostAlloc");
  world.worker->Run([&] {
    void* pinned = nullptr;
    if (world.worker->context().cuda().MemHostAlloc(&pinned, 1, 0) == 0)
      world.worker->context().cuda().MemFreeHost(pinned);
  });
  while (!world.cuda->someone_blocked()) std::this_thread::yield();
  world.cuda->RunAll();
  EXPECT_EQ(TakeAll(queue), std::vector<uint64_t>{1});
  EXPECT_TRUE(queue.Submit(copies)) << "and nobody waits";
  EXPECT_FALSE(queue.HasFinished());
  world.cuda->Unblock();
  while (!queue.HasFinished()) world.cuda->Step(0);
  EXPECT_EQ(TakeAll(queue), std::vector<uint64_t>{2});
}

}  // namespace
}  // namespace weightcast::device
