#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "endpoint/transfers/descriptor.h"
#include "unit/endpoint/party.h"
#include "weightcast/memory.h"

namespace weightcast::endpoint {
namespace {

using ::testing::HasSubstr;
using RegionTest = EndpointTest;

uint32_t IdOf(const Region& region) { return ParseDescriptor(region.Descriptor())->name.id; }

TEST_F(RegionTest, PiecesOfOneAllocationShareARegistration) {
  Party a;
  auto buffer = Allocate(1 << 20);
  ASSERT_TRUE(buffer.ok());
  const auto bytes = (*buffer)->bytes();
  auto first = a->Register(bytes.subspan(0, 1000), Access::kRead);
  auto second = a->Register(bytes.subspan(5000, 1000), Access::kRead);
  auto writable = a->Register(bytes.subspan(5000, 1000), Access::kGranted);
  ASSERT_TRUE(first.ok() && second.ok() && writable.ok());
  EXPECT_EQ(IdOf(*first), IdOf(*second));
  EXPECT_NE(IdOf(*first), IdOf(*writable));
  EXPECT_EQ(second->length(), 1000U);
  EXPECT_EQ(a.fast().regions(), 2U);
  EXPECT_TRUE(first->Close(Soon()).ok());
  EXPECT_EQ(a.fast().regions(), 2U);  // The second still needs it.
  EXPECT_TRUE(second->Close(Soon()).ok());
  EXPECT_EQ(a.fast().regions(), 1U);
  EXPECT_TRUE(second->Close(Soon()).ok());  // Again is harmless.
}

TEST_F(RegionTest, SlicesCountFromTheirOwnRegion) {
  Pair pair;
  auto buffer = *Allocate(1 << 16);
  // Both regions begin inside a larger registration.
  auto there = pair.b->Register(buffer->bytes().subspan(10'000, 500), Access::kReadWrite);
  auto whole = pair.a->Register(pair.source, Access::kLocal);
  auto here = pair.a->Register(std::span(pair.source).subspan(3000, 1000), Access::kLocal);
  auto imported = pair.to_b->Import(there->Descriptor());
  ASSERT_TRUE(imported.ok()) << imported.status().ToString();
  EXPECT_EQ(imported->length(), 500U);
  const Piece piece{*here->Slice(20, 400), *imported->Slice(100, 400)};
  ASSERT_TRUE(pair.to_b->Write({&piece, 1}, {})->Wait().ok());
  EXPECT_TRUE(
      std::equal(pair.source.begin() + 3020, pair.source.begin() + 3420, buffer->bytes().begin() + 10'100));
}

TEST_F(RegionTest, ASliceIsInsideWhatItIsASliceOf) {
  Pair pair(4096);
  const LocalSlice whole = pair.source_region->Whole();
  EXPECT_EQ(whole.length(), 4096U);
  EXPECT_EQ(whole.Slice(8, 100)->Slice(50, 50)->length(), 50U);
  EXPECT_EQ(whole.Slice(4096, 0)->length(), 0U);
  for (const auto& [offset, length] :
       {std::pair<uint64_t, uint64_t>{0, 4097}, {4096, 1}, {4097, 0}, {UINT64_MAX, 2}, {2, UINT64_MAX}}) {
    EXPECT_EQ(whole.Slice(offset, length).status().code(), Code::kOutOfBounds);
    EXPECT_EQ(pair.imported.Slice(offset, length).status().code(), Code::kOutOfBounds);
  }
  EXPECT_EQ(whole.Slice(8, 16)->Slice(8, 24).status().message(),
            "24 bytes at 8 are not inside a slice of 16 bytes; give a part inside it");
}

// Offsets that a caller must add, or may forget, cannot be written.
template <typename P>
concept HasOffsets = requires(P piece) { piece.local_offset; } || requires(P piece) { piece.remote_offset; };
static_assert(!HasOffsets<Piece>);
static_assert(!std::is_constructible_v<LocalSlice, uint64_t, uint32_t, uint64_t, uint64_t>);
static_assert(!std::is_constructible_v<Piece, RemoteSlice, LocalSlice>);

TEST_F(RegionTest, SlicesOfOthersAreRefused) {
  Pair pair(4096);
  Pair others(4096);
  const auto refusal = [&](const LocalSlice& local, const RemoteSlice& remote) {
    const Piece piece{local, remote};
    return pair.to_b->Write({&piece, 1}, {}).status();
  };
  const LocalSlice local = pair.source_region->Whole();
  const RemoteSlice remote = pair.imported.Whole();
  EXPECT_TRUE(refusal(local, remote).ok());
  EXPECT_THAT(refusal({}, remote).message(), HasSubstr("the local region is closed"));
  EXPECT_THAT(refusal(local, {}).message(), HasSubstr("the peer's region was released"));
  EXPECT_THAT(refusal(others.source_region->Whole(), remote).message(), HasSubstr("with another endpoint"));
  EXPECT_THAT(refusal(local, others.imported.Whole()).message(), HasSubstr("on another connection"));
  EXPECT_THAT(
      refusal(*local.Slice(0, 8), *remote.Slice(0, 9)).message(),
      HasSubstr(", piece 0: the local slice has 8 bytes, the peer's slice 9; give two of equal length"));
}

TEST_F(RegionTest, ASliceDoesNotOutliveItsRegion) {
  Pair pair(4096);
  const LocalSlice local = pair.source_region->Whole();
  const RemoteSlice remote = pair.imported.Whole();
  const auto id = IdOf(*pair.source_region);
  pair.source_region.reset();
  auto again = pair.a->Register(pair.source, Access::kLocal);
  ASSERT_EQ(IdOf(*again), id);  // The number comes back, and names other memory.
  Piece piece{local, remote};
  EXPECT_EQ(pair.to_b->Write({&piece, 1}, {}).status().code(), Code::kInvalidArgument);
  piece.local = again->Whole();
  ASSERT_TRUE(pair.to_b->Write({&piece, 1}, {})->Wait().ok());
  pair.to_b->Release(pair.imported);
  const auto import = pair.to_b->Import(pair.target_region->Descriptor());
  EXPECT_EQ(pair.to_b->Write({&piece, 1}, {}).status().code(), Code::kInvalidArgument);
  pair.to_b->Release(pair.imported);  // Again: nothing.
  piece.remote = import->Whole();
  EXPECT_TRUE(pair.to_b->Write({&piece, 1}, {})->Wait().ok());
}

TEST_F(RegionTest, AnOldDescriptorReachesNothing) {
  Pair pair(4096);
  const std::string descriptor = pair.target_region->Descriptor();
  const uint32_t id = IdOf(*pair.target_region);
  pair.target_region.reset();
  auto again = pair.b->Register(pair.target, Access::kReadWrite);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(IdOf(*again), id);  // The id comes back...
  const auto before = pair.target;
  EXPECT_EQ(pair.WriteAll()->Wait().code(), Code::kFenced);  // ...under another generation.
  auto imported = pair.to_b->Import(descriptor);
  if (imported.ok()) {
    Piece piece = pair.At(0, 10);
    piece.remote = *imported->Slice(0, 10);
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
  EXPECT_THAT(other.message(), HasSubstr("if it has restarted, get a descriptor of its new region"));
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
  pair.to_b->Release({});
  EXPECT_EQ(pair.a.fast().imports(), 1U);
  EXPECT_EQ(pair.WriteAll().status().code(), Code::kInvalidArgument);
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_TRUE(write->Wait().ok());
  EXPECT_TRUE(Eventually([&] { return pair.a.fast().imports() == 0; }));
}

TEST_F(RegionTest, ClosingEndsTheTransfersThatUseIt) {
  FakeNet::SetDefaults("fast", {.hold = true});
  Pair pair;
  auto write = pair.WriteAll();
  ASSERT_TRUE(Eventually([&] { return pair.a.fast().posted() > 0; }));
  // The transport still reads it: the memory must be kept.
  const Status busy = pair.source_region->Close(Clock::now() + FromSeconds(0.05));
  EXPECT_EQ(busy.code(), Code::kTimedOut);
  EXPECT_THAT(busy.message(), HasSubstr("keep the memory"));
  EXPECT_EQ(write->Wait().code(), Code::kCancelled);
  EXPECT_THAT(write->Wait().message(), HasSubstr("closed the local region"));
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
  EXPECT_EQ(a->Register(std::span<std::byte>(), Access::kRead).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace weightcast::endpoint
