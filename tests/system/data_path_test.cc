#include "system/counted.h"
#include "system/endpoint_linked.h"

// What a transfer costs besides moving its bytes: this program counts its own allocations and locks.

namespace weightcast::system_test {
namespace {

class DataPath : public ::testing::TestWithParam<PeerSetup> {};

std::string NameOf(const ::testing::TestParamInfo<PeerSetup>& info) {
  return StrCat(info.param.transport, info.param.shared ? "Shared" : "Private");
}
INSTANTIATE_TEST_SUITE_P(Paths, DataPath,
                         ::testing::Values(PeerSetup{.transport = "shm", .shared = true},
                                           PeerSetup{.transport = "shm", .shared = false},
                                           PeerSetup{.transport = "tcp", .shared = false}),
                         NameOf);

/// The counting itself works.
TEST(Counting, WhatAllocatesAndLocksIsCounted) {
  std::mutex mutex;
  counted = {.on = true};
  const auto made = std::make_unique<int>(1);
  {
    const std::lock_guard lock(mutex);
  }
  counted.on = false;
  EXPECT_EQ(counted.allocations, 1);
  EXPECT_EQ(counted.locks, 1);
  EXPECT_EQ(*made, 1);
}

TEST_P(DataPath, AllocatesNothingAndTakesNoLock) {
  constexpr size_t kPieces = 64;
  Linked linked(GetParam(), size_t{4} << 20);
  const auto run = [&](size_t length, size_t count) {
    std::array<Piece, kPieces> pieces;
    for (size_t i = 0; i < count; ++i) pieces[i] = linked.At(i * (64 << 10), length);
    const std::span<const Piece> all(pieces.data(), count);
    for (const bool write : {true, false}) {
      counted = {.on = true};
      for (int i = 0; i < 100; ++i) {
        auto transfer = write ? linked.connection->Write(all, {}) : linked.connection->Read(all, {});
        if (!transfer.ok() || !transfer->Wait().ok()) std::abort();
      }
      counted.on = false;
      if (counted.allocations + counted.locks > 0) return counted;
    }
    return counted;
  };
  for (const auto& [length, count] : {std::pair<size_t, size_t>{8, 1}, {8, kPieces}, {32 << 10, kPieces}}) {
    run(length, count);  // The first ones make room.
    // The endpoint's thread may hold progress at that moment, and what it does is not counted here.
    EXPECT_TRUE(Eventually(
        [&, bytes = length, pieces = count] {
          const Counted found = run(bytes, pieces);
          return found.allocations == 0 && found.locks == 0;
        },
        std::chrono::seconds(5)))
        << count << " pieces of " << length << ": " << counted.allocations << " allocations, "
        << counted.locks << " locks";
  }
}

}  // namespace
}  // namespace weightcast::system_test
