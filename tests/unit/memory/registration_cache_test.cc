#include "memory/registration_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace weightcast {
namespace {

using Cache = RegistrationCache<int>;

class RegistrationCacheTest : public testing::Test {
 protected:
  Result<Cache::Handle> Acquire(std::span<std::byte> bytes, Access access = Access::kReadWrite) {
    return cache.Acquire(bytes, access, [&](const DescribedMemory& memory, Access) -> Result<int> {
      registered.push_back(memory);
      return static_cast<int>(registered.size());
    });
  }
  std::vector<DescribedMemory> registered;
  std::vector<int> dropped;
  Cache cache{[this](Cache::Entry&& entry) { dropped.push_back(entry.data); }};
  std::vector<std::byte> ordinary = std::vector<std::byte>(1000);
};

TEST_F(RegistrationCacheTest, PiecesInsideShareOneRegistration) {
  const std::span<std::byte> bytes(ordinary);
  auto whole = Acquire(bytes);
  ASSERT_TRUE(whole.ok());
  auto piece = Acquire(bytes.subspan(10, 20));
  ASSERT_TRUE(piece.ok());
  EXPECT_EQ(registered.size(), 1U);
  EXPECT_EQ(*whole, *piece);
  EXPECT_EQ((*piece)->OffsetOf(&ordinary[10]), 10U);
  EXPECT_EQ(registered[0].address, ordinary.data());
  EXPECT_EQ(registered[0].length, 1000U);
  whole->reset();
  EXPECT_TRUE(dropped.empty());
  piece->reset();
  EXPECT_EQ(dropped, std::vector<int>{1});
  EXPECT_EQ(cache.size(), 0U);
}

TEST_F(RegistrationCacheTest, AnEntryEndsWithItsLastHolderAndTheNextIsNew) {
  uint64_t last = 0;
  for (int i = 1; i <= 5; ++i) {
    const auto handle = Acquire(ordinary);
    ASSERT_TRUE(handle.ok());
    EXPECT_EQ((*handle)->data, i) << "an old registration was found again";
    EXPECT_NE((*handle)->memory.allocation.identity, last);
    last = (*handle)->memory.allocation.identity;
  }
  EXPECT_EQ(dropped.size(), 5U);
}

TEST_F(RegistrationCacheTest, AnotherAccessIsAnotherRegistration) {
  const auto one = Acquire(ordinary, Access::kReadWrite);
  const auto two = Acquire(ordinary, Access::kGranted);
  const auto three = Acquire(ordinary, Access::kLocal);
  EXPECT_EQ(registered.size(), 3U);
  EXPECT_NE(*one, *two);
  EXPECT_EQ((*two)->access, Access::kGranted);
}

TEST_F(RegistrationCacheTest, OverlapsAreRegisteredAnewAndAllAreFound) {
  const std::span<std::byte> bytes(ordinary);
  const auto left = Acquire(bytes.subspan(0, 600));
  const auto right = Acquire(bytes.subspan(400, 600));
  EXPECT_EQ(registered.size(), 2U);
  EXPECT_EQ(*Acquire(bytes.subspan(450, 100)), *right);
  EXPECT_EQ(*Acquire(bytes.subspan(100, 100)), *left);
  EXPECT_EQ(*Acquire(bytes.subspan(900, 100)), *right);
  EXPECT_EQ(registered.size(), 2U);
  EXPECT_TRUE(Acquire(bytes.subspan(300, 500)).ok());
  EXPECT_EQ(registered.size(), 3U);
}

TEST_F(RegistrationCacheTest, ALargerOneTakesOverFromThoseInside) {
  const std::span<std::byte> bytes(ordinary);
  auto small = Acquire(bytes.subspan(100, 10));
  auto other = Acquire(bytes.subspan(100, 50));
  const auto whole = Acquire(bytes);
  EXPECT_EQ(cache.size(), 1U);
  EXPECT_EQ(*Acquire(bytes.subspan(100, 10)), *whole);
  small->reset();
  other->reset();
  EXPECT_EQ(dropped, (std::vector<int>{1, 2}));
  EXPECT_EQ(*Acquire(bytes.subspan(100, 10)), *whole);
  EXPECT_EQ(registered.size(), 3U);
}

TEST_F(RegistrationCacheTest, MemoryFromAllocateIsRegisteredWholeAndKeptAlive) {
  auto made = Allocate(8192);
  ASSERT_TRUE(made.ok());
  const auto bytes = (*made)->bytes();
  const int fd = (*made)->fd();
  auto handle = Acquire(bytes.subspan(100, 10));
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(registered[0].address, bytes.data());
  EXPECT_EQ(registered[0].length, 8192U);
  EXPECT_EQ(registered[0].fd, fd);
  EXPECT_EQ(*Acquire(bytes.subspan(8000)), *handle);
  made->reset();
  bytes[0] = std::byte{1};  // The registration holds the buffer.
  EXPECT_TRUE(FindShared(bytes).has_value());
  handle->reset();
  EXPECT_FALSE(FindShared(bytes).has_value());
}

TEST_F(RegistrationCacheTest, ErrorsOfMakeAreReturnedAndNothingIsKept) {
  const auto failed = cache.Acquire(
      ordinary, Access::kRead,
      [](const DescribedMemory&, Access) -> Result<int> { return Status(Code::kExhausted, "no room"); });
  EXPECT_EQ(failed.status().code(), Code::kExhausted);
  EXPECT_EQ(cache.size(), 0U);
  EXPECT_TRUE(dropped.empty());
  EXPECT_EQ(Acquire({}).status().code(), Code::kInvalidArgument);
}

TEST(RegistrationCacheLifetimeTest, HandlesMayOutliveTheCache) {
  int drops = 0;
  std::vector<std::byte> memory(10);
  auto cache = std::make_unique<Cache>([&](Cache::Entry&&) { ++drops; });
  auto handle =
      cache->Acquire(memory, Access::kRead, [](const DescribedMemory&, Access) -> Result<int> { return 1; });
  ASSERT_TRUE(handle.ok());
  cache.reset();
  EXPECT_EQ(drops, 0);
  handle->reset();
  EXPECT_EQ(drops, 1);
}

TEST(RegistrationCacheThreadTest, EveryRegistrationMadeIsDroppedOnce) {
  std::atomic<int> live = 0;
  std::vector<std::byte> memory(1000);
  Cache cache([&](Cache::Entry&&) { live.fetch_sub(1); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const auto handle = cache.Acquire(
            std::span(memory).subspan(i % 10, 100), Access::kRead,
            [&](const DescribedMemory&, Access) -> Result<int> { return live.fetch_add(1) + 1; });
        ASSERT_TRUE(handle.ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(live.load(), 0);
  EXPECT_EQ(cache.size(), 0U);
}

}  // namespace
}  // namespace weightcast
