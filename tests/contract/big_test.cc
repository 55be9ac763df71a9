// Transfers longer than 32 bits count, in little memory: one piece of it stands at many addresses.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/fd.h"
#include "base/strings.h"
#include "contract/suite.h"
#include "memory/registration_cache.h"

namespace weightcast::transport {
namespace {

constexpr size_t kGiB = size_t{1} << 30;
/// No multiple of it is a power of two, so that bytes that are put 4 GiB off are seen.
constexpr size_t kPeriod = 37U << 20 | 4096;
/// At the end of each area: memory of its own, so that bytes that never came are seen.
constexpr size_t kTail = 16U << 20;

/// `size` bytes of address space over a period and a tail of memory.
class Repeated {
 public:
  explicit Repeated(size_t size) : size_(size), fd_(memfd_create("repeated", MFD_CLOEXEC)) {
    Require(ftruncate(fd_.get(), kPeriod + kTail) == 0, "ftruncate");
    void* space = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Require(space != MAP_FAILED, "mmap");
    base_ = static_cast<std::byte*>(space);
    for (size_t at = 0; at < size - kTail; at += kPeriod) Map(at, std::min(kPeriod, size - kTail - at), 0);
    Map(size - kTail, kTail, kPeriod);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  ~Repeated() { munmap(base_, size_); }

  [[nodiscard]] std::span<std::byte> bytes() const { return {base_, size_}; }
  [[nodiscard]] DescribedMemory memory() const { return DescribeHostMemory(bytes(), FindShared(bytes())); }
  void Fill(uint64_t seed) const {
    ForEachWord(bytes().first(kPeriod), seed);
    ForEachWord(bytes().last(kTail), seed + 1);
  }
  void Wipe() const {
    std::memset(base_, 0x5a, kPeriod);
    std::memset(bytes().last(kTail).data(), 0x5a, kTail);
  }

 private:
  void Map(size_t at, size_t length, off_t offset) const {
    void* mapped =
        mmap(base_ + at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), offset);
    Require(mapped != MAP_FAILED, "mmap of a part");
  }
  static void ForEachWord(std::span<std::byte> bytes, uint64_t seed) {
    for (size_t at = 0; at < bytes.size(); at += 8) {
      const uint64_t word = (at + seed) * 0x9e3779b97f4a7c15U;
      std::memcpy(&bytes[at], &word, 8);
    }
  }
  size_t size_;
  UniqueFd fd_;
  std::byte* base_ = nullptr;
};

uint64_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    uint64_t kib = 0;
    file >> kib;
    if (name == "MemAvailable:") return kib << 10;
    std::getline(file, unit);
  }
  return 0;
}

/// ThreadSanitizer keeps more of its own beside what is touched.
#ifdef __SANITIZE_THREAD__
constexpr size_t kBytesForEach = 6;
#else
constexpr size_t kBytesForEach = 1;
#endif

class BigTest : public PairTest {
 protected:
  /// Writes all but 13 bytes at each end into `target` and reads it back.
  void ThereAndBack(size_t size, std::span<std::byte> target, const DescribedMemory& memory) {
    const Repeated source(size);
    source.Fill(size);
    ASSERT_TRUE(a.transport().Register({a.self(), 1, 1}, source.memory(), Access::kLocal).ok());
    auto key = b.transport().Register({b.self(), 1, 1}, memory, Access::kReadWrite);
    ASSERT_TRUE(key.ok()) << key.status().message();
    const RemoteRegion there = a.Import(Pair::kA, {{b.self(), 1, 1}, size, *key});
    Op op{.kind = OpKind::kWrite,
          .local = 1,
          .local_offset = 13,
          .remote = there,
          .remote_offset = 13,
          .length = size - 26,
          .grant{},
          .signal{}};
    ASSERT_EQ(Run(op).code, Code::kOk);
    ASSERT_TRUE(SameBytes(target.subspan(13, size - 26), source.bytes().subspan(13, size - 26)));
    EXPECT_NE(target[size - 13], source.bytes()[size - 13]);
    source.Wipe();
    op.kind = OpKind::kRead;
    ASSERT_EQ(Run(op).code, Code::kOk);
    EXPECT_TRUE(SameBytes(target.subspan(13, size - 26), source.bytes().subspan(13, size - 26)));
    EXPECT_EQ(source.bytes()[size - 13], std::byte{0x5a});
  }
  void OfSize(size_t size) {
    if (GetParam().place == TestPlace::kPrivate) {
      const Repeated target(size);
      target.Wipe();
      return ThereAndBack(size, target.bytes(), target.memory());
    }
    // Memory that is shared by mapping cannot stand at many addresses.
    const size_t needed = size * kBytesForEach + 2 * kGiB;
    if (AvailableMemory() < needed) GTEST_SKIP() << "needs " << needed << " bytes of free memory";
    const TestMemory target = NewMemory(size);
    ThereAndBack(size, target.bytes(), target.memory());
  }
};

TEST_P(BigTest, OneGigabyte) { OfSize(kGiB); }
TEST_P(BigTest, MoreThan32BitsCount) { OfSize(4 * kGiB + kGiB / 16); }

WC_CONTRACT_ON_HOST(BigTest);

}  // namespace
}  // namespace weightcast::transport
