#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "endpoint/descriptor.h"
#include "unit/endpoint/party.h"
#include "weightcast/memory.h"

namespace weightcast::endpoint {
namespace {

using ::testing::HasSubstr;
using RegionTest = EndpointTest;

TEST_F(RegionTest, PiecesOfOneAllocationShareARegistration) {
  Party a;
  auto buffer = Allocate(1 << 20);
  ASSERT_TRUE(buffer.ok());
  const auto bytes = (*buffer)->bytes();
  auto first = a->Register(bytes.subspan(0, 1000), Access::kRead);
  auto second = a->Register(bytes.subspan(5000, 1000), Access::kRead);
  auto writable = a->Register(bytes.subspan(5000, 1000), Access::kGranted);
  ASSERT_TRUE(first.ok() && second.ok() && writable.ok());
  EXPECT_EQ(first->id(), second->id());
  EXPECT_NE(first->id(), writable->id());
  EXPECT_EQ(first->offset(), 0U);
  EXPECT_EQ(second->offset(), 5000U);
  EXPECT_EQ(second->length(), 1000U);
  EXPECT_EQ(a.fast().regions(), 2U);
  EXPECT_TRUE(first->Close(Soon()).ok());
  EXPECT_EQ(a.fast().regions(), 2U);  // The second still needs it.
  EXPECT_TRUE(second->Close(Soon()).ok());
  EXPECT_EQ(a.fast().regions(), 1U);
  EXPECT_TRUE(second->Close(Soon()).ok());  // Again is harmless.
}

TEST_F(RegionTest, OffsetsCountFromTheImportedRegion) {
  Pair pair;
  auto buffer = *Allocate(1 << 16);
  auto region = pair.b->Register(buffer->bytes().subspan(10'000, 500), Access::kReadWrite);
  auto index = pair.to_b->Import(region->Descriptor());
  ASSERT_TRUE(index.ok()) << index.status().ToString();
  EXPECT_EQ(pair.to_b->LengthOf(*index), 500U);
  EXPECT_EQ(pair.to_b->LengthOf(*index + 1), 0U);
  Piece piece{pair.source_region->id(), *index, 20, 0, 500};
  ASSERT_TRUE(pair.to_b->Write({&piece, 1}, {})->Wait().ok());
  EXPECT_TRUE(
      std::equal(pair.source.begin() + 20, pair.source.begin() + 520, buffer->bytes().begin() + 10'000));
  piece.remote_offset = 1;
  EXPECT_EQ(pair.to_b->Write({&piece, 1}, {}).status().code(), Code::kOutOfBounds);
}

TEST_F(RegionTest, AnOldDescriptorReachesNothing) {
  Pair pair(4096);
  const std::string descriptor = pair.target_region->Descriptor();
  const uint32_t id = pair.target_region->id();
  pair.target_region.reset();
  auto again = pair.b->Register(pair.target, Access::kReadWrite);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id(), id);  // The id comes back...
  const auto before = pair.target;
  EXPECT_EQ(pair.WriteAll()->Wait().code(), Code::kFenced);  // ...under another generation.
  auto imported = pair.to_b->Import(descriptor);
  if (imported.ok()) {
    Piece piece = pair.At(0, 10);
    piece.remote_region = *imported;
    EXPECT_EQ(pair.to_b->Write({&piece, 1}, {})->Wait().code(), Code::kFenced);
  }
  EXPECT_EQ(pair.target, before);
}

TEST_F(RegionTest, ImportChecksWhatItIsGiven) {
  Pair pair;
  Party c({.rank = 7});
  EXPECT_EQ(pair.to_b->Import("garbage").status().code(), Code::kProtocol);
  const Status other = pair.to_a->Import(pair.target_region->Descriptor()).status();
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_THAT(other.message(), HasSubstr("has that process restarted?"));
  auto descriptor = *ParseDescriptor(pair.target_region->Descriptor());
  descriptor.keys.clear();
  EXPECT_THAT(pair.to_b->Import(EncodeDescriptor(descriptor)).status().message(),
              HasSubstr("has not registered"));
}

TEST_F(RegionTest, ReleasedImportsGoWhenTheirTransfersHave) {
  FakeNet::SetDefaults("fast", {.hold = true});
  Pair pair;
  auto write = pair.WriteAll();
  ASSERT_TRUE(Eventually([&] { return pair.a.fast().posted() > 0; }));
  pair.to_b->Release(pair.imported);
  pair.to_b->Release(99);
  EXPECT_EQ(pair.a.fast().imports(), 1U);
  EXPECT_EQ(pair.WriteAll().status().code(), Code::kInvalidArgument);
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_TRUE(write->Wait().ok());
  EXPECT_TRUE(Eventually([&] { return pair.a.fast().imports() == 0; }));
  auto index = pair.to_b->Import(pair.target_region->Descriptor());
  EXPECT_EQ(*index, pair.imported);  // The index is used again.
}

TEST_F(RegionTest, ClosingEndsTheTransfersThatUseIt) {
  FakeNet::SetDefaults("fast", {.hold = true});
  Pair pair;
  auto write = pair.WriteAll();
  ASSERT_TRUE(Eventually([&] { return pair.a.fast().posted() > 0; }));
  // The transport still reads it: the memory must be kept.
  const Status busy = pair.source_region->Close(Clock::now() + FromSeconds(0.05));
  EXPECT_EQ(busy.code(), Code::kTimedOut);
  EXPECT_THAT(busy.message(), HasSubstr("keep its memory"));
  EXPECT_EQ(write->Wait().code(), Code::kCancelled);
  EXPECT_THAT(write->Wait().message(), HasSubstr("the local region was closed"));
  EXPECT_EQ(pair.WriteAll().status().code(), Code::kInvalidArgument);
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_TRUE(pair.source_region->Close(Soon()).ok());
  EXPECT_TRUE(write->fenced());
  EXPECT_EQ(pair.a.fast().regions(), 0U);
}

TEST_F(RegionTest, AStoppedWriterKeepsItOpenButNoOneHanging) {
  Pair pair(4096, Access::kReadWrite, {.settings = {{"lease", "0.1"}}},
            {.role = "inference", .rank = 1, .settings = {{"lease", "0.1"}}});
  pair.b.fast().Set([](Faults& faults) { faults.hold_revoke = true; });
  EXPECT_EQ(pair.target_region->Close(Clock::now() + FromSeconds(0.02)).code(), Code::kTimedOut);
  const TimePoint begin = Clock::now();
  pair.target_region.reset();  // At most a lease.
  pair.b.Destroy();            // At most another.
  EXPECT_LT(Clock::now() - begin, kPatience);
}

TEST_F(RegionTest, RegistersAndClosesFromManyThreads) {
  Party a;
  std::vector<std::byte> bytes(1 << 16);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 200; ++i) {
        auto region = a->Register(std::span(bytes).subspan((t * 97 + i) % 1000, 4096), Access::kRead);
        ASSERT_TRUE(region.ok());
        EXPECT_TRUE(ParseDescriptor(region->Descriptor()).ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(a.fast().regions(), 0U);
}

TEST_F(RegionTest, ARegionMayOutliveItsEndpoint) {
  Party a;
  std::vector<std::byte> bytes(100);
  auto region = a->Register(bytes, Access::kRead);
  a.Destroy();
  EXPECT_TRUE(region->Close(Soon()).ok());
  EXPECT_EQ(region->length(), 100U);
}

TEST_F(RegionTest, NothingCannotBeRegistered) {
  Party a;
  EXPECT_EQ(a->Register({}, Access::kRead).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::endpoint
