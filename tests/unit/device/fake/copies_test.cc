// CopyQueue on the fake driver: real orders of streams, batches and pieces.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "device/buffer.h"
#include "device/stream_event.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

constexpr size_t kBlock = 40'000;
constexpr size_t kBlocks = 24;

struct Case {
  uint64_t seed;
  const char* config;
  void Print(std::ostream& out) const { out << config << ", seed " << seed; }
};
void PrintTo(const Case& each, std::ostream* out) { each.Print(*out); }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    cases.push_back({seed, "driver=13000"});
    cases.push_back({seed, "driver=12080"});
    cases.push_back({seed, "driver=12000,writes=0"});
  }
  return cases;
}

class CopiesOnFake : public ::testing::TestWithParam<Case> {};

/// Blocks in pinned memory and on the device; each copy moves a block that holds its own number.
struct Blocks {
  explicit Blocks(Host& owner) : host(owner) {
    device = host.Alloc(kBlocks * kBlock);
    from = host.Pinned(kBlocks * kBlock);
    to = host.Pinned(kBlocks * kBlock);
    for (size_t i = 0; i < kBlocks; ++i) {
      std::memset(from + i * kBlock, static_cast<int>(i + 1), kBlock);
    }
    std::memset(to, 0, kBlocks * kBlock);
  }
  ~Blocks() {
    EXPECT_EQ(host.cuda->MemFree(device), drivers::CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemFreeHost(from), drivers::CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemFreeHost(to), drivers::CUDA_SUCCESS);
  }
  [[nodiscard]] Copy In(size_t i) const {
    return {.to = Pointer(device) + i * kBlock, .from = from + i * kBlock, .length = kBlock};
  }
  [[nodiscard]] Copy Out(size_t i) const {
    return {.to = to + i * kBlock, .from = Pointer(device) + i * kBlock, .length = kBlock};
  }
  [[nodiscard]] bool Came(size_t i) const {
    return std::all_of(to + i * kBlock, to + (i + 1) * kBlock,
                       [&](std::byte byte) { return byte == static_cast<std::byte>(i + 1); });
  }
  Host& host;
  drivers::CUdeviceptr device = 0;
  std::byte* from = nullptr;
  std::byte* to = nullptr;
};

// A ticket that was told is a promise about every byte, whatever runs in which order.
TEST_P(CopiesOnFake, WhatWasToldHasArrived) {
  FakeWorld world(GetParam().config);
  Blocks blocks(world.host);
  std::mt19937_64 random(GetParam().seed);
  {
    CopyQueue queue(world.worker, {.streams = 3});
    std::deque<std::vector<size_t>> in;  // Batches that are under way: their blocks.
    std::deque<std::vector<size_t>> out;
    std::vector<bool> outward;  // Of each batch that was taken, in order.
    size_t next = 0;
    size_t told = 0;
    std::vector<size_t> inside;
    size_t came = 0;
    while (came < kBlocks) {
      const uint64_t choice = random() % 8;
      if (choice == 0 && next < kBlocks) {
        const size_t count = std::min<size_t>(1 + random() % 4, kBlocks - next);
        std::vector<Copy> copies;
        std::vector<size_t> ids;
        for (size_t i = 0; i < count; ++i) ids.push_back(next + i);
        for (const size_t id : ids) copies.push_back(blocks.In(id));
        if (queue.Submit(copies).has_value()) {
          next += count;
          in.push_back(ids);
          outward.push_back(false);
        }
      } else if (choice == 1 && !inside.empty()) {
        std::vector<Copy> copies;
        for (const size_t id : inside) copies.push_back(blocks.Out(id));
        if (queue.Submit(copies).has_value()) {
          out.push_back(std::exchange(inside, {}));
          outward.push_back(true);
        }
      } else if (choice < 5) {
        fake_cuda_step(0);
      } else if (choice < 7) {
        world.worker->Step();
      } else if (const auto finished = queue.TakeFinished()) {
        ASSERT_TRUE(finished->ok) << queue.failure().ToString();
        auto& queue_of = outward[told++] ? out : in;
        for (const size_t id : queue_of.front()) {
          if (&queue_of == &out) {
            ASSERT_TRUE(blocks.Came(id)) << "block " << id << " was told and has not come";
            ++came;
          } else {
            inside.push_back(id);
          }
        }
        queue_of.pop_front();
      }
    }
  }
  world.Settle();
}

INSTANTIATE_TEST_SUITE_P(Seeds, CopiesOnFake, ::testing::ValuesIn(Cases()));

TEST(CopiesOnFakeOnce, UsesTheCallsThatTheDriverHas) {
  for (const auto& [config, batch, write] :
       {std::tuple{"driver=13000", 1U, 1U}, std::tuple{"driver=12080", 1U, 1U},
        std::tuple{"driver=12000", 0U, 1U}}) {
    FakeWorld world(config);
    Blocks blocks(world.host);
    {
      CopyQueue queue(world.worker);
      const std::vector<Copy> copies{blocks.In(0), blocks.In(1)};
      ASSERT_TRUE(queue.Submit(copies).has_value());
      world.Settle();
      ASSERT_TRUE(queue.TakeFinished().has_value());
    }
    world.Settle();
    EXPECT_EQ(fake_cuda_calls("cuMemcpyBatchAsync"), batch) << config;
    EXPECT_EQ(fake_cuda_calls("cuMemcpyAsync"), batch == 0 ? 2U : 0U) << config;
    EXPECT_EQ(fake_cuda_calls("cuStreamWriteValue64"), write) << config;
  }
}

TEST(CopiesOnFakeOnce, ProgressMakesNoCall) {
  FakeWorld world;
  Blocks blocks(world.host);
  {
    CopyQueue queue(world.worker);
    for (size_t i = 0; i < 10; ++i) {
      const Copy copy = blocks.In(i);
      const uint64_t before = fake_cuda_calls(nullptr);
      ASSERT_TRUE(queue.Submit({&copy, 1}).has_value());
      EXPECT_FALSE(queue.TakeFinished().has_value());
      EXPECT_EQ(fake_cuda_calls(nullptr), before);
      world.Settle(i);
      const uint64_t after = fake_cuda_calls(nullptr);
      EXPECT_TRUE(queue.TakeFinished().has_value());
      EXPECT_EQ(fake_cuda_calls(nullptr), after);
    }
  }
  world.Settle();
}

// Whoever reads the words is not held up by a driver that does not answer.
TEST(CopiesOnFakeOnce, ABlockedDriverHoldsUpTheWorkerOnly) {
  FakeWorld world;
  Blocks blocks(world.host);
  {
    CopyQueue queue(world.worker);
    const Copy first = blocks.In(0);
    const Copy second = blocks.In(1);
    ASSERT_TRUE(queue.Submit({&first, 1}).has_value());
    world.Settle();
    fake_cuda_block(0, "cuMemcpyAsync", 1, 60'000);
    ASSERT_TRUE(queue.Submit({&second, 1}).has_value());
    std::thread device([&] { world.worker->Step(); });
    while (fake_cuda_blocked(0) == 0) std::this_thread::yield();
    EXPECT_TRUE(queue.TakeFinished().has_value()) << "the first is over";
    EXPECT_FALSE(queue.TakeFinished().has_value());
    const Copy third = blocks.In(2);
    EXPECT_TRUE(queue.Submit({&third, 1}).has_value());
    fake_cuda_unblock(0);
    device.join();
    world.Settle();
    EXPECT_TRUE(queue.TakeFinished().has_value());
    EXPECT_TRUE(queue.TakeFinished().has_value());
  }
  world.Settle();
}

TEST(CopiesOnFakeOnce, ALostContextEndsEveryBatchOnce) {
  for (uint64_t pieces = 0; pieces < 40; ++pieces) {
    FakeWorld world;
    world.host.leaves_things = true;
    const auto device = world.host.Alloc(kBlocks * kBlock);
    std::byte* const pinned = world.host.Pinned(kBlocks * kBlock);
    CopyQueue queue(world.worker);
    fake_cuda_lose(0, 0, drivers::CUDA_ERROR_ECC_UNCORRECTABLE, pieces);
    for (size_t i = 0; i < 3; ++i) {
      const Copy copy{.to = Pointer(device) + i * kBlock, .from = pinned + i * kBlock, .length = kBlock};
      ASSERT_TRUE(queue.Submit({&copy, 1}).has_value());
    }
    world.Settle();
    bool ok = true;
    for (size_t i = 0; i < 3; ++i) {
      const auto finished = queue.TakeFinished();
      ASSERT_TRUE(finished.has_value()) << "batch " << i << ", lost at piece " << pieces;
      EXPECT_TRUE(ok || !finished->ok) << "a batch behind one that failed has arrived";
      ok = finished->ok;
    }
    EXPECT_FALSE(queue.TakeFinished().has_value());
    EXPECT_EQ(queue.failure().message().find("uncorrectable ECC error") != std::string::npos, !ok);
    EXPECT_EQ(world.worker->health()->lost(), !ok);
  }
}

TEST(CopiesOnFakeOnce, AnotherThreadsCaptureIsNotSpoilt) {
  FakeWorld world;
  Blocks blocks(world.host);
  const auto captured = world.host.Stream();
  ASSERT_EQ(fake_cuda_capture(captured, 1), 0);
  std::thread device([&] {
    CopyQueue queue(world.worker);
    const Copy copy = blocks.In(0);
    ASSERT_TRUE(queue.Submit({&copy, 1}).has_value());
    world.Settle();
    EXPECT_TRUE(queue.TakeFinished().has_value());
    auto buffer = Buffer::Allocate(world.worker->health()->shared_context(), kMiB);
    EXPECT_TRUE(buffer.ok());
  });
  device.join();
  world.Settle();
  EXPECT_EQ(StreamEvent::Record(world.worker, captured).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(fake_cuda_capture(captured, 0), 0);
  EXPECT_EQ(world.host.cuda->StreamDestroy(captured), drivers::CUDA_SUCCESS);
}

}  // namespace
}  // namespace weightcast::device
