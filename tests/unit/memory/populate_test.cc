#include "memory/populate.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace weightcast {
namespace {

constexpr size_t kSize = 64 * 4096;

class Mapping {
 public:
  explicit Mapping(int protection, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1)
      : base_(static_cast<std::byte*>(mmap(nullptr, kSize, protection, flags, fd, 0))) {}
  ~Mapping() { munmap(base_, kSize); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {base_, kSize}; }
  [[nodiscard]] size_t Present() const {
    std::vector<unsigned char> pages(kSize / 4096);
    EXPECT_EQ(mincore(base_, kSize, pages.data()), 0);
    size_t count = 0;
    for (const auto page : pages) count += page & 1;
    return count;
  }

 private:
  std::byte* base_;
};

TEST(PopulateTest, PagesArePresentAndUnchanged) {
  const Mapping fresh(PROT_READ | PROT_WRITE);
  ASSERT_EQ(fresh.Present(), 0U);
  ASSERT_TRUE(Populate(fresh.bytes(), Access::kGranted).ok());
  EXPECT_EQ(fresh.Present(), kSize / 4096);

  std::memset(fresh.bytes().data(), 7, kSize);
  ASSERT_TRUE(Populate(fresh.bytes().subspan(5, 9000), Access::kReadWrite).ok());
  for (const auto value : fresh.bytes()) ASSERT_EQ(value, std::byte{7});
}

TEST(PopulateTest, NothingIsFine) { EXPECT_TRUE(Populate({}, Access::kReadWrite).ok()); }

TEST(PopulateTest, ReadOnlyMemoryServesAsASourceOnly) {
  const Mapping constant(PROT_READ);
  EXPECT_TRUE(Populate(constant.bytes(), Access::kLocal).ok());
  EXPECT_TRUE(Populate(constant.bytes(), Access::kRead).ok());
  for (const Access access : {Access::kGranted, Access::kReadWrite}) {
    const Status status = Populate(constant.bytes(), access);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
  }
}

TEST(PopulateTest, UnmappedMemoryIsAnErrorAndNoSignal) {
  std::byte* address = nullptr;
  {
    const Mapping gone(PROT_READ | PROT_WRITE);
    address = gone.bytes().data();
  }
  EXPECT_EQ(Populate({address, kSize}, Access::kReadWrite).code(), Code::kInvalidArgument);
  const Mapping none(PROT_NONE);
  EXPECT_EQ(Populate(none.bytes(), Access::kRead).code(), Code::kInvalidArgument);
}

/// A mapped checkpoint as a source must not become a private copy of itself.
TEST(PopulateTest, ASourceMappedFromAFileStaysShared) {
  std::string path = testing::TempDir() + "/populateXXXXXX";
  const int fd = mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, kSize), 0);
  const Mapping file(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
  ASSERT_TRUE(Populate(file.bytes(), Access::kLocal).ok());
  EXPECT_EQ(pwrite(fd, "changed", 7, 4096), 7);
  EXPECT_EQ(std::memcmp(&file.bytes()[4096], "changed", 7), 0) << "the page was copied";
  close(fd);
  unlink(path.c_str());
}

TEST(PopulateTest, WritersMeanwhileLoseNothing) {
  const Mapping shared(PROT_READ | PROT_WRITE);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    auto* words = reinterpret_cast<uint64_t*>(shared.bytes().data());
    for (uint64_t round = 1; !stop; ++round) {
      for (size_t page = 0; page < kSize / 4096; ++page) {
        std::atomic_ref(words[page * 512]).store(round);
        if (std::atomic_ref(words[page * 512]).load() != round) stop = true;
      }
    }
  });
  for (int i = 0; i < 200 && !stop; ++i) ASSERT_TRUE(Populate(shared.bytes(), Access::kReadWrite).ok());
  EXPECT_FALSE(stop.exchange(true)) << "a store was undone";
  writer.join();
}

}  // namespace
}  // namespace weightcast
