#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "base/available.h"
#include "memory/shared.h"
#include "weightcast/memory.h"

namespace weightcast {
namespace {

TEST(AllocateTest, IsZeroedSharedAndReserved) {
  const auto made = Allocate(10'000);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto bytes = (*made)->bytes();
  ASSERT_EQ(bytes.size(), 10'000U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % 4096, 0U);
  EXPECT_TRUE(std::ranges::all_of(bytes, [](std::byte value) { return value == std::byte{0}; }));

  struct stat info{};
  ASSERT_EQ(fstat((*made)->fd(), &info), 0);
  EXPECT_EQ(info.st_size, 12'288);
  EXPECT_GE(info.st_blocks * 512, 12'288) << "pages are not reserved";
  EXPECT_NE(fcntl((*made)->fd(), F_GETFD) & FD_CLOEXEC, 0);

  // What another mapping of the descriptor writes shows here.
  void* other = mmap(nullptr, 12'288, PROT_READ | PROT_WRITE, MAP_SHARED, (*made)->fd(), 0);
  ASSERT_NE(other, MAP_FAILED);
  static_cast<char*>(other)[5000] = 'x';
  EXPECT_EQ(bytes[5000], std::byte{'x'});
  munmap(other, 12'288);
}

TEST(AllocateTest, NothingIsRefused) { EXPECT_EQ(Allocate(0).status().code(), Code::kInvalidArgument); }

TEST(AllocateTest, MoreThanThereIsIsAnErrorAndNoSignal) {
  for (const size_t size : {size_t{1} << 46, ~size_t{0}, static_cast<size_t>(AvailableMemory()) * 2}) {
    const auto made = Allocate(size);
    ASSERT_FALSE(made.ok()) << size;
    EXPECT_EQ(made.status().code(), Code::kExhausted);
    EXPECT_FALSE(made.status().message().empty());
  }
}

TEST(AllocateTest, WithoutDescriptorsIsAnError) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "UBSan's check of vptr opens a pipe: without descriptors it takes every object for a wrong one";
#endif
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto made = Allocate(4096);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kExhausted);
}

TEST(AvailableMemoryTest, IsSomethingAndLessThanEverything) {
  EXPECT_GT(AvailableMemory(), 1U << 20);
  EXPECT_LT(AvailableMemory(), uint64_t{1} << 50);
}

TEST(FindSharedTest, FindsBytesInsideABufferAndNoOthers) {
  const auto made = Allocate(8192);
  ASSERT_TRUE(made.ok());
  const auto bytes = (*made)->bytes();
  const auto whole = FindShared(bytes);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->fd, (*made)->fd());
  EXPECT_EQ(whole->offset, 0U);
  EXPECT_EQ(whole->allocation.base, bytes.data());
  EXPECT_EQ(whole->allocation.length, 8192U);
  const auto piece = FindShared(bytes.subspan(100, 50));
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->offset, 100U);
  EXPECT_EQ(piece->allocation.identity, whole->allocation.identity);
  EXPECT_TRUE(FindShared(bytes.subspan(8192)).has_value());

  EXPECT_FALSE(FindShared({bytes.data(), 8193}).has_value());
  EXPECT_FALSE(FindShared({bytes.data() - 1, 2}).has_value());
  EXPECT_FALSE(FindShared({bytes.data() + 4096, SIZE_MAX}).has_value());
  std::vector<std::byte> ordinary(100);
  EXPECT_FALSE(FindShared(ordinary).has_value());
}

TEST(FindSharedTest, HoldsTheBufferAndForgetsItWithItsLastHandle) {
  auto made = Allocate(4096);
  ASSERT_TRUE(made.ok());
  const auto bytes = (*made)->bytes();
  auto found = FindShared(bytes);
  made->reset();
  ASSERT_TRUE(found.has_value());
  found->buffer->bytes()[0] = std::byte{1};  // Still mapped.
  EXPECT_TRUE(FindShared(bytes).has_value());
  found.reset();
  EXPECT_FALSE(FindShared(bytes).has_value());
}

TEST(FindSharedTest, AnAddressThatServesAgainIsANewAllocation) {
  std::set<uint64_t> identities;
  for (int i = 0; i < 20; ++i) {
    const auto made = Allocate(4096);  // Most often where the last one was.
    ASSERT_TRUE(made.ok());
    EXPECT_TRUE(identities.insert(FindShared((*made)->bytes())->allocation.identity).second);
  }
}

TEST(FindSharedTest, ManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto made = Allocate(4096);
        if (!made.ok() || !FindShared((*made)->bytes()).has_value()) wrong.fetch_add(1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace weightcast
