#include <gtest/gtest.h>

#include <unordered_set>

#include "transport/verbs/queue_table.h"

namespace weightcast::transport::verbs {
namespace {

class NoOwner final : public QueueOwner {
  void OnSent(uint32_t) override {}
  void OnSendError(uint32_t, Code, std::string_view) override {}
  void OnMessage(std::string_view) override {}
  void OnImmediate(uint32_t) override {}
  void OnBroken(Status) override {}
};

TEST(VerbsQueueTableTest, AnOwnerIsFoundByIdAndByNumberUntilItIsDetached) {
  QueueTable table;
  NoOwner owner;
  const uint32_t id = table.Attach(77);
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.OwnerById(id), nullptr);
  EXPECT_EQ(table.OwnerByNumber(77), nullptr);
  table.SetOwner(77, id, owner);
  EXPECT_EQ(table.OwnerById(id), &owner);
  EXPECT_EQ(table.OwnerByNumber(77), &owner);
  table.Detach(77, id);
  EXPECT_EQ(table.OwnerById(id), nullptr);
  EXPECT_EQ(table.OwnerByNumber(77), nullptr);
  EXPECT_EQ(table.size(), 0U);
}

/// Its completions may still come while another queue pair has its slot, and the device's number.
TEST(VerbsQueueTableTest, TheIdOfOneThatIsGoneDoesNotFindTheNextInItsSlot) {
  QueueTable table;
  NoOwner first;
  NoOwner second;
  const uint32_t old = table.Attach(77);
  table.SetOwner(77, old, first);
  table.Detach(77, old);
  const uint32_t id = table.Attach(77);
  table.SetOwner(77, id, second);
  EXPECT_EQ(table.OwnerById(old), nullptr);
  EXPECT_EQ(table.OwnerById(id), &second);
}

TEST(VerbsQueueTableTest, ManyThatComeAndGoNeedOneSlotAndNoIdHasTheTopBit) {
  QueueTable table;
  NoOwner owner;
  const uint32_t other = table.Attach(1);
  table.SetOwner(1, other, owner);
  std::unordered_set<uint32_t> ids;
  for (uint32_t i = 0; i < 0x8000; ++i) {
    const uint32_t id = table.Attach(2);
    EXPECT_EQ(id >> 31, 0U);
    EXPECT_NE(id, other);
    ids.insert(id);
    table.Detach(2, id);
  }
  EXPECT_EQ(ids.size(), 0x8000U);
  EXPECT_TRUE(ids.contains(table.Attach(2))) << "it grows without end";
  EXPECT_EQ(table.OwnerById(other), &owner);
}

TEST(VerbsQueueTableTest, HalfOfThemAreForPairs) {
  QueueTable table;
  for (uint32_t number = 0; number < QueueTable::kMost / 2 - 1; ++number) table.Attach(number);
  EXPECT_FALSE(table.Crowded(1));
  EXPECT_TRUE(table.Crowded(2));
}

TEST(VerbsQueueTableTest, OneThatIsLostIsReachableForEver) {
  QueueTable table;
  EXPECT_FALSE(table.reachable());
  const uint32_t id = table.Attach(5);
  EXPECT_TRUE(table.reachable());
  table.Detach(5, id);
  EXPECT_FALSE(table.reachable());
  table.Lose();
  EXPECT_TRUE(table.reachable());
}

}  // namespace
}  // namespace weightcast::transport::verbs
