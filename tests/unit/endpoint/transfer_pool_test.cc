#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "endpoint/transfers/transfer_state.h"

namespace weightcast::endpoint {
namespace {

TEST(TransferPool, GivesTheSameOneAgainAsNew) {
  TransferPool pool;
  Transfer::State* const first = pool.Take().Release();
  first->pieces.resize(3);
  first->bytes = 7;
  first->outcome = {Code::kTimedOut, "late"};
  first->phase.Set(Transfer::State::kFenced);
  pool.GiveBack(first);
  Transfer::State* const again = pool.Take().Release();
  EXPECT_EQ(again, first);
  EXPECT_TRUE(again->pieces.empty());
  EXPECT_GE(again->pieces.capacity(), 3U) << "its room is kept";
  EXPECT_EQ(again->bytes, 0U);
  EXPECT_TRUE(again->outcome.ok());
  EXPECT_EQ(again->phase.value(), 0U);
  pool.GiveBack(again);
}

TEST(TransferPool, KeepsNoRoomOfALongOne) {
  TransferPool pool;
  Transfer::State* const first = pool.Take().Release();
  first->pieces.resize(100'000);
  pool.GiveBack(first);
  Transfer::State* const again = pool.Take().Release();
  EXPECT_LE(again->pieces.capacity(), 256U);
  pool.GiveBack(again);
}

TEST(TransferPool, NobodyGetsWhatAnotherHas) {
  TransferPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 5000; ++i) {
        std::array<Transfer::State*, 3> held{};
        for (auto*& one : held) {
          one = pool.Take().Release();
          one->bytes = static_cast<uint64_t>(t) + 1;
        }
        for (auto* one : held) {
          EXPECT_EQ(one->bytes, static_cast<uint64_t>(t) + 1);
          pool.GiveBack(one);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace weightcast::endpoint
