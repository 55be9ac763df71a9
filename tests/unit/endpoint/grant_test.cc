#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "base/hash.h"
#include "endpoint/transfers/chunks.h"
#include "endpoint/transfers/grants.h"
#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

using ::testing::HasSubstr;
using GrantTest = EndpointTest;

TEST_F(GrantTest, WritesUnderItAreSignalledChunkByChunk) {
  Pair pair(4096 * 10 + 5, Access::kGranted);
  std::atomic<int> arrived = 0;
  const auto on_transfer = [&](uint32_t transfer, const GrantProgress& now) {
    // Transfer 1 is written first.
    EXPECT_EQ(transfer, arrived == 0 ? 1U : 0U);
    EXPECT_EQ(now.transfers_arrived, arrived == 0 ? 1U : 2U);
    EXPECT_EQ(now.transfers_expected, 2U);
    EXPECT_EQ(pair.source, pair.target);
    ++arrived;
  };
  auto grant = pair.to_a->OpenGrant({.transfers = 2, .on_transfer = on_transfer});
  ASSERT_TRUE(grant.ok()) << grant.status().ToString();
  EXPECT_EQ(pair.to_a->ProgressOf(*grant).chunks_arrived, 0U);
  auto write = pair.WriteAll({.grant = *grant, .signal = 1});
  ASSERT_TRUE(write.ok());
  EXPECT_TRUE(write->Wait().ok());
  EXPECT_TRUE(Eventually([&] { return arrived == 1; }));
  EXPECT_EQ(pair.to_a->ProgressOf(*grant).chunks_arrived, 11U);
  EXPECT_FALSE(pair.to_a->ProgressOf(*grant).complete());
  // A transfer without bytes is one chunk without bytes. A repeated one counts once.
  ASSERT_TRUE(pair.to_b->Write({}, {.grant = *grant, .signal = 0})->Wait().ok());
  ASSERT_TRUE(pair.to_b->Write({}, {.grant = *grant, .signal = 0})->Wait().ok());
  EXPECT_TRUE(Eventually([&] { return pair.to_a->ProgressOf(*grant).complete(); }));
  EXPECT_EQ(pair.to_a->ProgressOf(*grant).chunks_arrived, 12U);
  EXPECT_TRUE(Eventually([&] { return arrived == 2; }));
}

TEST_F(GrantTest, AWriteMayStandForSeveralTransfers) {
  Pair pair(4096 * 3, Access::kGranted);
  std::vector<uint32_t> arrived;
  std::mutex mutex;
  const auto on_transfer = [&](uint32_t transfer, const GrantProgress& now) {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(pair.source, pair.target);
    EXPECT_EQ(now.transfers_arrived, transfer == 0 ? 1U : 4U) << "of a range all at once";
    arrived.push_back(transfer);
  };
  auto grant = pair.to_a->OpenGrant({.transfers = 4, .on_transfer = on_transfer});
  ASSERT_TRUE(grant.ok());
  EXPECT_TRUE(pair.WriteAll({.grant = *grant, .signal = 0})->Wait().ok());
  EXPECT_TRUE(pair.to_a->WaitGrant(*grant, 1, Soon()).ok());
  EXPECT_FALSE(pair.to_a->ProgressOf(*grant).complete());
  const auto have_arrived = [&](const std::vector<uint32_t>& transfers) {
    return Eventually([&] {
      const std::lock_guard lock(mutex);
      return arrived == transfers;
    });
  };
  EXPECT_TRUE(have_arrived({0})) << "nobody reads while the next write comes";
  for (int i = 0; i < 2; ++i) {  // What comes twice counts once.
    EXPECT_TRUE(pair.WriteAll({.grant = *grant, .signal = 1, .signals = 3})->Wait().ok());
    EXPECT_TRUE(pair.to_a->WaitGrant(*grant, 4, Soon()).ok());
    EXPECT_TRUE(have_arrived({0, 1, 2, 3}));
  }
  for (const TransferOptions& refused :
       {TransferOptions{.grant = *grant, .signal = 0, .signals = 0},
        TransferOptions{.grant = *grant, .signal = 0, .signals = 257},
        TransferOptions{.grant = *grant, .signal = (1U << 24) - 1, .signals = 2}}) {
    const auto write = pair.WriteAll(refused);
    EXPECT_EQ(write.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(write.status().message(),
                HasSubstr("signals may be 1 to 256, and the sum of both at most 16777216"));
  }
  EXPECT_EQ(pair.to_a->OpenGrant({.transfers = (1U << 24) + 1}).status().code(), Code::kInvalidArgument);
}

TEST_F(GrantTest, WhoWaitsForTransfersIsTold) {
  Pair pair(4096 * 3, Access::kGranted);
  auto grant = pair.to_a->OpenGrant({.transfers = 3});
  ASSERT_TRUE(grant.ok());
  std::thread writer([&] {
    for (uint32_t transfer = 0; transfer < 2; ++transfer)
      EXPECT_TRUE(pair.WriteAll({.grant = *grant, .signal = transfer})->Wait().ok());
  });
  EXPECT_TRUE(pair.to_a->WaitGrant(*grant, 2, Soon()).ok());
  EXPECT_EQ(pair.source, pair.target);
  writer.join();
  const Status late = pair.to_a->WaitGrant(*grant, 3, Clock::now() + FromSeconds(0.01));
  EXPECT_EQ(late.code(), Code::kTimedOut);
  EXPECT_THAT(late.message(), HasSubstr("2 of 3 transfers"));

  std::thread waiter([&] {
    EXPECT_EQ(pair.to_a->WaitGrant(*grant, 3, Soon()).code(), Code::kCancelled) << "it is revoked";
  });
  pair.to_a->RevokeGrant(*grant, {});
  waiter.join();
  EXPECT_TRUE(Eventually([&] { return pair.to_a->WaitGrant(*grant, 0, Soon()).code() == Code::kCancelled; }));

  auto other = pair.to_a->OpenGrant({.transfers = 1});
  std::atomic<bool> ended = false;
  std::thread last([&] {
    const Status end = pair.to_a->WaitGrant(*other, 1, Soon());
    EXPECT_FALSE(end.ok());
    ended = true;
  });
  pair.b.fast().Set(
      [](Faults& faults) { faults.hold_revoke = true; });  // A writer that is stopped: no fence.
  pair.to_b->Close();
  EXPECT_TRUE(Eventually([&] { return ended.load(); }, FromSeconds(10)))
      << "it waits on though the connection has ended";
  last.join();
  pair.b.fast().Set([](Faults& faults) { faults.hold_revoke = false; });
}

TEST_F(GrantTest, SignalsMeanTheirBytesWhateverHappensToLanes) {
  FakeNet::SetDefaults("fast", {.lanes = 4, .shuffle = true});
  Pair pair(4096 * 200, Access::kGranted);
  std::atomic<bool> done = false;
  const auto on_transfer = [&](uint32_t, const GrantProgress& now) {
    EXPECT_TRUE(now.complete());
    EXPECT_EQ(pair.source, pair.target);
    done = true;
  };
  auto grant = pair.to_a->OpenGrant({.transfers = 1, .on_transfer = on_transfer});
  auto write = pair.WriteAll({.grant = *grant, .signal = 0});
  for (uint32_t lane = 0; lane < 3; ++lane) pair.a.fast().KillLane(lane);
  EXPECT_TRUE(write->Wait().ok());
  EXPECT_TRUE(Eventually([&] { return done.load(); }));
  EXPECT_EQ(pair.to_a->ProgressOf(*grant).chunks_arrived, 200U);
}

TEST_F(GrantTest, ChecksumsLetTheTargetVerifyEachChunk) {
  Pair pair(4096 * 3 + 100, Access::kGranted);
  const std::vector<std::pair<uint64_t, uint64_t>> ranges = {{100, 5000}, {0, 100}, {5100, 0}, {5100, 7000}};
  std::vector<Piece> written;
  std::vector<PlacedPiece> pieces;
  for (const auto& [offset, length] : ranges) {
    written.push_back(pair.At(offset, length));
    pieces.push_back({.remote_offset = offset, .length = length});
  }
  std::mutex mutex;
  std::map<uint32_t, uint64_t> sums;
  std::atomic<bool> done = false;
  const auto on_chunk = [&](uint32_t transfer, uint32_t chunk, uint64_t checksum) {
    EXPECT_EQ(transfer, 0U);
    EXPECT_FALSE(done);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(sums.emplace(chunk, checksum).second);
  };
  auto grant = pair.to_a->OpenGrant({.transfers = 1,
                                     .on_transfer = [&](uint32_t, const GrantProgress&) { done = true; },
                                     .on_chunk = on_chunk});
  ASSERT_TRUE(pair.to_b->Write(written, {.grant = *grant, .signal = 0, .checksum = true})->Wait().ok());
  ASSERT_TRUE(Eventually([&] { return done.load(); }));
  // What a receiver does that knows the pieces.
  ChunkCursor at;
  const uint64_t chunks = CountChunks(pieces, pair.to_a->peer_chunk());
  ASSERT_EQ(sums.size(), chunks);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    ChunkWalk walk(pieces, pair.to_a->peer_chunk(), at);
    std::vector<std::byte> bytes;
    while (const auto part = walk.Next()) {
      const auto from =
          pair.target.begin() + static_cast<ptrdiff_t>(pieces[part->piece].remote_offset + part->offset);
      bytes.insert(bytes.end(), from, from + static_cast<ptrdiff_t>(part->length));
    }
    EXPECT_EQ(Hash64(bytes), sums.at(chunk)) << chunk;
    at = walk.cursor();
  }
}

TEST_F(GrantTest, AfterTheFenceNothingLands) {
  Pair pair(4096 * 500, Access::kGranted);
  auto grant = pair.to_a->OpenGrant({.transfers = 1});
  auto write = pair.WriteAll({.grant = *grant, .signal = 0});
  ASSERT_TRUE(Eventually([&] { return pair.to_a->ProgressOf(*grant).chunks_arrived > 10; }));
  std::atomic<bool> fenced = false;
  std::vector<std::byte> then;
  pair.to_a->RevokeGrant(*grant, [&] {
    then = pair.target;
    fenced = true;
  });
  const Status status = write->Wait();
  if (!status.ok()) {  // It may have been faster.
    EXPECT_EQ(status.code(), Code::kFenced);
    EXPECT_THAT(status.message(), HasSubstr("the peer revoked the grant"));
  }
  EXPECT_EQ(write->WaitFenced(), status);
  ASSERT_TRUE(Eventually([&] { return fenced.load(); }));
  EXPECT_EQ(pair.target, then);
  EXPECT_FALSE(pair.to_a->ProgressOf(*grant).complete());
  EXPECT_EQ(pair.WriteAll({.grant = *grant, .signal = 0})->Wait().code(), Code::kFenced);
  EXPECT_EQ(pair.target, then);
}

TEST_F(GrantTest, FencedIsCalledOnceEachAndOnlyWhenItIsTrue) {
  Pair pair(4096, Access::kGranted);
  auto grant = pair.to_a->OpenGrant({.transfers = 1});
  pair.b.fast().Set([](Faults& faults) { faults.hold_revoke = true; });
  std::atomic<int> fenced = 0;
  pair.to_a->RevokeGrant(*grant, [&] { ++fenced; });
  pair.to_a->RevokeGrant(*grant, [&] { ++fenced; });
  // The order of callbacks tells that it had its chance.
  std::atomic<bool> marker = false;
  pair.to_a->RevokeGrant({5, 12345}, [&] { marker = true; });
  ASSERT_TRUE(Eventually([&] { return marker.load(); }));
  EXPECT_EQ(fenced, 0);
  pair.b.fast().Set([](Faults& faults) { faults.hold_revoke = false; });
  EXPECT_TRUE(Eventually([&] { return fenced == 2; }));
  pair.to_a->RevokeGrant(*grant, [&] { ++fenced; });
  EXPECT_TRUE(Eventually([&] { return fenced == 3; }));
}

TEST_F(GrantTest, AClosedConnectionFencesOnlyWhenItsLinkHasClosed) {
  Pair pair(4096, Access::kGranted);
  auto early = pair.to_a->OpenGrant({.transfers = 1});
  auto late = pair.to_a->OpenGrant({.transfers = 1});
  std::atomic<int> fenced = 0;
  pair.b.fast().Set([](Faults& faults) { faults.hold_revoke = true; });
  pair.to_a->RevokeGrant(*early, [&] { ++fenced; });
  pair.to_a->Close();
  pair.b.Disconnected();
  pair.to_a->RevokeGrant(*late, [&] { ++fenced; });
  EXPECT_EQ(pair.to_a->OpenGrant({}).status().code(), Code::kCancelled);
  EXPECT_EQ(fenced, 0);
  pair.b.fast().Set([](Faults& faults) { faults.hold_revoke = false; });
  EXPECT_TRUE(Eventually([&] { return fenced == 2; }));
}

TEST_F(GrantTest, SlotsRunOutAndComeBackUnderNewNames) {
  Pair pair(4096, Access::kGranted);
  std::vector<transport::GrantName> open;
  for (uint32_t i = 1; i < transport::kGrantSlots; ++i) {
    auto grant = pair.to_a->OpenGrant({});
    ASSERT_TRUE(grant.ok()) << grant.status().ToString();
    open.push_back(*grant);
  }
  EXPECT_EQ(pair.to_a->OpenGrant({}).status().code(), Code::kExhausted);
  std::atomic<bool> fenced = false;
  pair.to_a->RevokeGrant(open[7], [&] { fenced = true; });
  ASSERT_TRUE(Eventually([&] { return fenced.load(); }));
  auto again = pair.to_a->OpenGrant({});
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->slot, open[7].slot);
  for (const auto& other : open) EXPECT_NE(again->id, other.id);
  EXPECT_EQ(pair.to_b->Write({}, {.grant = open[7], .signal = 0})->Wait().code(), Code::kFenced);
}

TEST_F(GrantTest, AnotherPeersGrantIsNotOurs) {
  Pair pair(4096, Access::kGranted);
  Party c({.rank = 7});
  auto from_c = c.Connect(pair.b);
  auto to_c = pair.b.Accepted(1);
  auto grant = to_c.OpenGrant({.transfers = 1});
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(pair.WriteAll({.grant = *grant, .signal = 0})->Wait().code(), Code::kFenced);
}

TEST_F(GrantTest, ImpossibleSignalsEndTheConnection) {
  const transport::Signal bad[] = {
      {.grant = {}, .transfer = 2, .chunk = 0, .chunks = 1},               // No such transfer.
      {.grant = {}, .transfer = 0, .chunk = 1, .chunks = 1},               // No such chunk.
      {.grant = {}, .transfer = 0, .chunk = 0, .chunks = kMaxChunks + 1},  // More than is ever kept.
      {.grant = {}, .transfer = 1, .chunk = 0, .chunks = 3},               // Other than before.
      {.grant = {}, .transfer = SignalRange{1, 2}.Packed(), .chunk = 0, .chunks = 2},  // More than there are.
      {.grant = {}, .transfer = SignalRange{0, 2}.Packed(), .chunk = 0, .chunks = 2},  // Another's, too.
  };
  for (transport::Signal signal : bad) {
    Pair pair(4096, Access::kGranted);
    auto grant = pair.to_a->OpenGrant({.transfers = 2});
    signal.grant = *grant;
    pair.b.fast().Inject({.grant = *grant, .transfer = 1, .chunk = 0, .chunks = 2});
    pair.b.fast().Inject(signal);
    EXPECT_EQ(pair.b.Disconnected().second.code(), Code::kProtocol);
    EXPECT_THAT(pair.a.Disconnected().second.message(), HasSubstr("it signalled chunk"));
  }
}

TEST_F(GrantTest, ATransferIsCountedByOneSignalAlone) {
  for (const SignalRange second :
       {SignalRange{1, 1}, SignalRange{2, 2}, SignalRange{0, 2}, SignalRange{0, 4}}) {
    Pair pair(4096, Access::kGranted);
    auto grant = pair.to_a->OpenGrant({.transfers = 5});
    pair.b.fast().Inject({.grant = *grant, .transfer = SignalRange{0, 3}.Packed(), .chunk = 0, .chunks = 1});
    pair.b.fast().Inject({.grant = *grant, .transfer = second.Packed(), .chunk = 0, .chunks = 1});
    EXPECT_EQ(pair.b.Disconnected().second.code(), Code::kProtocol);
    EXPECT_THAT(pair.a.Disconnected().second.message(),
                HasSubstr("it signalled this transfer together with others"));
  }
}

TEST_F(GrantTest, TheTargetsOwnNumberOfChunksCounts) {
  const auto chunks = [](uint32_t first, uint32_t count) -> uint64_t { return first == 0 ? 2 : 10 * count; };
  const transport::Signal lies[] = {
      {.grant = {}, .transfer = 0, .chunk = 0, .chunks = 1},
      {.grant = {}, .transfer = 0, .chunk = 2, .chunks = 3},
      {.grant = {}, .transfer = 1, .chunk = 0, .chunks = 2},
      {.grant = {}, .transfer = SignalRange{1, 2}.Packed(), .chunk = 0, .chunks = 10},
  };
  for (transport::Signal signal : lies) {
    Pair pair(4096, Access::kGranted);
    auto grant = pair.to_a->OpenGrant({.transfers = 3, .chunks = chunks});
    ASSERT_TRUE(grant.ok());
    signal.grant = *grant;
    pair.b.fast().Inject(signal);
    EXPECT_EQ(pair.b.Disconnected().second.code(), Code::kProtocol);
    EXPECT_THAT(pair.a.Disconnected().second.message(), HasSubstr("by the grant they have"));
  }
  Pair pair(4096 * 2, Access::kGranted);
  auto grant = pair.to_a->OpenGrant({.transfers = 3, .chunks = chunks});
  ASSERT_TRUE(pair.WriteAll({.grant = *grant, .signal = 0})->Wait().ok());
  for (uint32_t chunk = 0; chunk < 20; ++chunk)
    pair.b.fast().Inject(
        {.grant = *grant, .transfer = SignalRange{1, 2}.Packed(), .chunk = chunk, .chunks = 20});
  EXPECT_TRUE(Eventually([&] { return pair.to_a->ProgressOf(*grant).complete(); }));
}

TEST_F(GrantTest, OpensItsRangesAlone) {
  Pair pair(4096 * 3, Access::kGranted);
  const auto slice = [&](uint64_t offset, uint64_t length) {
    return *pair.target_region->Slice(offset, length);
  };
  const auto wrong = [&](GrantRange range) {
    return pair.to_a->OpenGrant({.transfers = 1, .ranges = {{range}}}).status().code();
  };
  EXPECT_EQ(wrong({.first = LocalSlice()}), Code::kInvalidArgument);
  EXPECT_EQ(wrong({.first = slice(0, 64), .stride = 63, .count = 2}), Code::kOutOfBounds) << "they overlap";
  EXPECT_EQ(wrong({.first = slice(0, 4096), .stride = 4096, .count = 4}), Code::kOutOfBounds);
  EXPECT_EQ(wrong({.first = slice(0, 64), .stride = UINT64_MAX / 2, .count = 3}), Code::kOutOfBounds);
  EXPECT_EQ(wrong({.first = slice(0, 64), .stride = 64, .count = 0}), Code::kOutOfBounds);
  auto part = pair.to_a->OpenGrant({.transfers = 1, .ranges = {{{.first = slice(0, 4096)}}}});
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  auto refused = pair.WriteAll({.grant = *part, .signal = 0});
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->Wait().code(), Code::kPermission);
  EXPECT_THAT(refused->Wait().message(), HasSubstr("the grant does not open these bytes"));
  auto whole = pair.to_a->OpenGrant(
      {.transfers = 1, .ranges = {{{.first = slice(0, 4096), .stride = 4096, .count = 3}}}});
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_TRUE(pair.WriteAll({.grant = *whole, .signal = 0})->Wait().ok());
  EXPECT_EQ(pair.source, pair.target);
}

TEST_F(GrantTest, UnknownGrantsSignalsAreDropped) {
  Pair pair(4096, Access::kGranted);
  pair.b.fast().Inject({.grant = {9, 9}, .transfer = 1, .chunk = 0, .chunks = 2});
  pair.b.fast().Inject({.grant = {900, 9}, .transfer = 1, .chunk = 0, .chunks = 2});
  auto grant = pair.to_a->OpenGrant({.transfers = 1});
  ASSERT_TRUE(pair.WriteAll({.grant = *grant, .signal = 0})->Wait().ok());
  EXPECT_TRUE(pair.to_a->status().ok());
}

TEST_F(GrantTest, WhatIsKeptForAPeerIsBounded) {
  Pair pair(4096, Access::kGranted);
  auto grant = pair.to_a->OpenGrant({.transfers = 100});
  for (uint32_t i = 0; i < 100; ++i) {
    pair.b.fast().Inject({.grant = *grant, .transfer = i, .chunk = 0, .chunks = kMaxChunks});
  }
  EXPECT_EQ(pair.b.Disconnected().second.code(), Code::kProtocol);
}

}  // namespace
}  // namespace weightcast::endpoint
