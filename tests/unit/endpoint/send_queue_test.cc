#include "endpoint/transfers/send_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace weightcast::endpoint {
namespace {

class SendQueueTest : public testing::Test {
 protected:
  /// The next `count` in whose turn it is.
  std::vector<long> Turns(int count) {
    std::vector<long> turns;
    for (int i = 0; i < count; ++i) turns.push_back(&queue_.Next() - transfers_.data());
    return turns;
  }

  std::array<Transfer::State, 6> transfers_;
  SendQueue queue_;
};

TEST_F(SendQueueTest, TheFirstFourTakeTurns) {
  for (auto& transfer : transfers_) queue_.Add(transfer);
  EXPECT_EQ(Turns(6), (std::vector<long>{0, 1, 2, 3, 0, 1}));
  queue_.Remove(transfers_[1]);
  EXPECT_EQ(Turns(4), (std::vector<long>{3, 4, 0, 2}));
}

TEST_F(SendQueueTest, EachIsInItOnce) {
  queue_.Add(transfers_[0]);
  queue_.Add(transfers_[1]);
  queue_.Add(transfers_[0]);
  EXPECT_EQ(Turns(3), (std::vector<long>{0, 1, 0}));
  queue_.Remove(transfers_[0]);
  queue_.Remove(transfers_[0]);
  EXPECT_EQ(Turns(2), (std::vector<long>{1, 1}));
  queue_.Remove(transfers_[1]);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(SendQueueTest, ItGoesOnAfterTheLastWasRemoved) {
  for (int i = 0; i < 3; ++i) queue_.Add(transfers_[i]);
  queue_.Remove(transfers_[2]);
  queue_.Add(transfers_[3]);
  EXPECT_EQ(Turns(3), (std::vector<long>{0, 1, 3}));
  for (int i : {0, 1, 3}) queue_.Remove(transfers_[i]);
  EXPECT_TRUE(queue_.empty());
  queue_.Add(transfers_[2]);
  EXPECT_EQ(Turns(1), (std::vector<long>{2}));
}

}  // namespace
}  // namespace weightcast::endpoint
