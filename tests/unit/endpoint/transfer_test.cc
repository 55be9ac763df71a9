#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "unit/endpoint/party.h"

namespace weightcast::endpoint {
namespace {

using TransferTest = EndpointTest;

TEST_F(TransferTest, WritesAndReads) {
  Pair pair(100'000);
  auto write = pair.WriteAll();
  ASSERT_TRUE(write.ok()) << write.status().ToString();
  EXPECT_TRUE(write->WaitFenced().ok());
  EXPECT_TRUE(write->ended());
  EXPECT_TRUE(write->fenced());
  EXPECT_EQ(write->bytes(), 100'000U);
  EXPECT_EQ(pair.source, pair.target);

  std::fill(pair.source.begin(), pair.source.end(), std::byte{0});
  const Piece all = pair.At(0, pair.source.size());
  auto read = pair.to_b->Read({&all, 1}, {});
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read->WaitFenced().ok());
  EXPECT_EQ(pair.source, Pattern(100'000, 1));
}

TEST_F(TransferTest, ManyPiecesOfAllSizesUnderBackPressureAndDisorder) {
  FakeNet::SetDefaults("fast", {.lanes = 3, .capacity = 5, .shuffle = true, .max_length = 1000});
  Pair pair(1 << 20);
  std::mt19937 random(7);
  std::vector<Piece> pieces;
  std::vector<std::byte> expected(pair.target.size());
  uint64_t at = 0;
  while (at < pair.source.size()) {
    // Nothing, a few bytes, or more than a chunk.
    static constexpr uint64_t kSizes[] = {0, 1, 7, 64, 300, 5000, 20'000};
    const uint64_t size = std::min<uint64_t>(kSizes[random() % 7], pair.source.size() - at);
    pieces.push_back(pair.At(at, size));
    at += size;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  auto write = pair.to_b->Write(pieces, {});
  ASSERT_TRUE(write.ok()) << write.status().ToString();
  EXPECT_TRUE(write->Wait().ok());
  EXPECT_EQ(pair.source, pair.target);
  EXPECT_LE(pair.a.fast().most_queued(), 5U);
}

TEST_F(TransferTest, PiecesAreNotExpandedAheadOfTime) {
  FakeNet::SetDefaults("fast", {.capacity = 100, .ops_per_progress = 100});
  Pair pair(1 << 20);
  std::vector<Piece> pieces(200'000);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = pair.At(i, 1);
  auto write = pair.to_b->Write(pieces, {});
  ASSERT_TRUE(write.ok());
  EXPECT_TRUE(write->Wait().ok());
  EXPECT_TRUE(std::equal(pair.source.begin(), pair.source.begin() + 200'000, pair.target.begin()));
  EXPECT_EQ(pair.a.fast().posted(), pieces.size());
  EXPECT_LE(pair.a.fast().most_queued(), 100U);
}

TEST_F(TransferTest, NothingToWriteEndsAtOnce) {
  Pair pair;
  const Piece empty = pair.At(5, 0);
  for (auto pieces : {std::span<const Piece>(), std::span(&empty, 1)}) {
    auto write = pair.to_b->Write(pieces, {});
    ASSERT_TRUE(write.ok());
    EXPECT_TRUE(write->WaitFenced().ok());
  }
  EXPECT_EQ(pair.a.fast().posted(), 0U);
}

TEST_F(TransferTest, WhoeverAsksIsToldOfTheEnd) {
  FakeNet::SetDefaults("fast", {.hold = true});
  Pair pair;
  pair.b.fast().Set([](Faults& faults) { faults.hold = false; });
  std::atomic<int> told{0};
  const auto tell = [&](const Status& status) { told += status.ok() ? 1 : 100; };
  auto write = pair.WriteAll({.on_end = tell});
  ASSERT_TRUE(write.ok());
  write->OnEnd(tell);
  write->OnEnd(tell);
  EXPECT_EQ(told.load(), 0);
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_TRUE(write->Wait().ok());
  write->OnEnd(tell);  // Also when it has ended.
  EXPECT_TRUE(Eventually([&] { return told == 4; })) << told;
}

TEST_F(TransferTest, StripesByTheBytesUnderWay) {
  FakeNet::SetDefaults("fast", {.lanes = 4});
  Pair pair(4096 * 64);
  ASSERT_TRUE(pair.WriteAll()->Wait().ok());
  const auto bytes = pair.a.fast().posted_per_lane();
  ASSERT_EQ(bytes.size(), 4U);
  for (const uint64_t lane : bytes) EXPECT_GT(lane, 4096U * 8);
}

TEST_F(TransferTest, ALostLanesChunksGoOutOnTheOthers) {
  FakeNet::SetDefaults("fast", {.lanes = 3, .hold = true});
  Pair pair(4096 * 100);
  pair.b.fast().Set([](Faults& faults) { faults.hold = false; });
  auto write = pair.WriteAll();
  ASSERT_TRUE(write.ok());
  pair.a.fast().KillLane(0);
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_TRUE(write->Wait().ok()) << write->Wait().ToString();
  EXPECT_EQ(pair.source, pair.target);
  EXPECT_TRUE(pair.to_b->status().ok());
  // And later transfers use what is left.
  ASSERT_TRUE(pair.WriteAll()->Wait().ok());
}

TEST_F(TransferTest, ALaneThatIsBackIsUsedAgain) {
  FakeNet::SetDefaults("fast", {.lanes = 2});
  Pair pair(4096 * 64);
  pair.a.fast().KillLane(0);
  ASSERT_TRUE(pair.WriteAll()->Wait().ok());
  const uint64_t without = pair.a.fast().posted_per_lane()[0];
  EXPECT_TRUE(Eventually([&] { return pair.to_b->Describe().find("1 lane,") != std::string::npos; }))
      << pair.to_b->Describe();
  pair.a.fast().RaiseLane(0);
  EXPECT_TRUE(Eventually([&] { return pair.to_b->Describe().find("2 lanes,") != std::string::npos; }))
      << pair.to_b->Describe();
  ASSERT_TRUE(pair.WriteAll()->Wait().ok());
  EXPECT_EQ(pair.source, pair.target);
  EXPECT_GT(pair.a.fast().posted_per_lane()[0], without);
}

TEST_F(TransferTest, WithoutLanesItFailsAndNamesThePeer) {
  FakeNet::SetDefaults("fast", {.lanes = 2, .hold = true});
  Pair pair(4096 * 100);
  auto write = pair.WriteAll();
  ASSERT_TRUE(write.ok());
  pair.a.fast().KillLane(0);
  pair.a.fast().KillLane(1);
  const Status status = write->Wait();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("engine rollout rank 1 (127.0.0.1:"), std::string::npos)
      << status.ToString();
  EXPECT_NE(status.message().find("the link to the peer has failed"), std::string::npos) << status.ToString();
  EXPECT_TRUE(write->WaitFenced(Soon()).code() == Code::kUnavailable);
  EXPECT_TRUE(write->fenced());
  EXPECT_FALSE(pair.to_b->status().ok());
  EXPECT_EQ(pair.WriteAll().status().code(), Code::kUnavailable);
  EXPECT_EQ(pair.a.Disconnected().first, pair.b->self());
}

TEST_F(TransferTest, TimesOutAndIsFencedLater) {
  FakeNet::SetDefaults("fast", {.hold = true});
  Pair pair;
  std::atomic<int> ends = 0;
  auto write = pair.WriteAll({.deadline = In(0.02), .on_end = [&](const Status& status) {
                                EXPECT_EQ(status.code(), Code::kTimedOut);
                                ++ends;
                              }});
  ASSERT_TRUE(write.ok());
  const Status status = write->Wait();
  EXPECT_EQ(status.code(), Code::kTimedOut);
  EXPECT_NE(status.message().find("0 of 16 chunks"), std::string::npos) << status.ToString();
  EXPECT_FALSE(write->fenced());
  EXPECT_EQ(write->WaitFenced(Clock::now() + FromSeconds(0.02)).code(), Code::kTimedOut);
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_EQ(write->WaitFenced(Soon()).code(), Code::kTimedOut);
  EXPECT_TRUE(write->fenced());
  EXPECT_TRUE(Eventually([&] { return ends == 1; }));
}

TEST_F(TransferTest, AWaitsDeadlineDoesNotEndTheTransfer) {
  FakeNet::SetDefaults("fast", {.hold = true});
  Pair pair;
  auto write = pair.WriteAll();
  EXPECT_EQ(write->Wait(Clock::now() + FromSeconds(0.01)).code(), Code::kTimedOut);
  EXPECT_FALSE(write->ended());
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_TRUE(write->Wait().ok());
}

TEST_F(TransferTest, CancelEndsAtOnceAndNothingLandsAfterTheFence) {
  FakeNet::SetDefaults("fast", {.hold = true});
  Pair pair(4096 * 100);
  auto write = pair.WriteAll();
  ASSERT_TRUE(write.ok());
  ASSERT_TRUE(Eventually([&] { return pair.a.fast().posted() > 0; }));
  write->Cancel();
  EXPECT_EQ(write->Wait().code(), Code::kCancelled);
  EXPECT_FALSE(write->fenced());
  write->Cancel();  // Twice is once.
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_EQ(write->WaitFenced(Soon()).code(), Code::kCancelled);
  const auto landed = pair.target;
  const size_t posted = pair.a.fast().posted();
  // What was not at the transport yet never goes there.
  ASSERT_TRUE(pair.to_b->Write({}, {})->Wait().ok());
  EXPECT_EQ(pair.target, landed);
  EXPECT_EQ(pair.a.fast().posted(), posted);
  EXPECT_LT(posted, 100U);
}

TEST_F(TransferTest, ShortTransfersDoNotWaitForLongOnes) {
  FakeNet::SetDefaults("fast", {.lanes = 1});
  std::mutex mutex;
  std::vector<std::string> ends;
  Pair pair(8 << 20);
  const auto noting = [&](const char* name) {
    return TransferOptions{.on_end = [&, name](const Status&) {
      const std::lock_guard lock(mutex);
      ends.emplace_back(name);
    }};
  };
  pair.a.fast().Set([](Faults& faults) { faults.hold = true; });
  auto whole = pair.WriteAll(noting("long"));
  const Piece small = pair.At(0, 8);
  auto quick = pair.to_b->Write({&small, 1}, noting("short"));
  ASSERT_TRUE(whole.ok() && quick.ok());
  pair.a.fast().Set([](Faults& faults) { faults.hold = false; });
  EXPECT_TRUE(quick->Wait().ok());
  EXPECT_TRUE(whole->Wait().ok());
  EXPECT_TRUE(Eventually([&] {
    const std::lock_guard lock(mutex);
    return ends.size() == 2;
  }));
  EXPECT_EQ(ends, (std::vector<std::string>{"short", "long"}));
}

TEST_F(TransferTest, BadArgumentsAreRefusedAtTheBorder) {
  Pair pair(4096);
  const Piece fine = pair.At(0, 10);
  EXPECT_EQ(pair.to_b->Write({&fine, 1}, {.signal = 0}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pair.to_b->Read({&fine, 1}, {.grant = {1, 1}, .signal = 0}).status().code(),
            Code::kInvalidArgument);
  const std::vector<Piece> second_bad = {fine, {pair.At(0, 10).local, pair.At(0, 20).remote}};
  const Status status = pair.to_b->Write(second_bad, {}).status();
  EXPECT_NE(status.message().find("piece 1: the local slice has 10 bytes, the peer's slice 20"),
            std::string::npos)
      << status.ToString();
  // The regions are not held by what was refused.
  EXPECT_TRUE(pair.source_region->Close(Soon()).ok());
}

TEST_F(TransferTest, AccessIsChecked) {
  for (const Access access : {Access::kLocal, Access::kGranted, Access::kRead, Access::kReadWrite}) {
    Pair pair(4096, access);
    const Piece piece = pair.At(0, 16);
    const bool writable = access == Access::kReadWrite;
    const bool readable = access == Access::kReadWrite || access == Access::kRead;
    EXPECT_EQ(pair.to_b->Write({&piece, 1}, {}).status().code(), writable ? Code::kOk : Code::kPermission);
    EXPECT_EQ(pair.to_b->Read({&piece, 1}, {}).status().code(), readable ? Code::kOk : Code::kPermission);
  }
}

TEST_F(TransferTest, ManyThreadsWriteAndWait) {
  Pair pair(1 << 16);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const Piece piece = pair.At(t * 8192, i % 3 == 0 ? 8192 : 8);
        auto write = pair.to_b->Write({&piece, 1}, {});
        ASSERT_TRUE(write.ok());
        ASSERT_TRUE(write->Wait().ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pair.source, pair.target);
}

TEST_F(TransferTest, NobodyNeedsToWait) {
  Pair pair;
  std::atomic<int> ended = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(pair.WriteAll({.on_end =
                                   [&](const Status& status) {
                                     EXPECT_TRUE(status.ok());
                                     ++ended;
                                   }})
                    .ok());
  }
  EXPECT_TRUE(Eventually([&] { return ended == 100; }));
  EXPECT_EQ(pair.source, pair.target);
}

TEST_F(TransferTest, CallbacksMayUseTheEndpointAndTheCallersLocks) {
  // What the callbacks use ends after the pair, whose end waits for the last of them.
  std::mutex mutex;
  std::atomic<int> written = 0;
  std::function<void(const Status&)> again;
  Pair pair(4096, Access::kGranted);
  auto grant = pair.to_a->OpenGrant({.transfers = 1});
  ASSERT_TRUE(grant.ok());
  const Piece piece = pair.At(0, 64);
  again = [&](const Status& status) {
    EXPECT_TRUE(status.ok()) << status.ToString();
    const std::lock_guard lock(mutex);  // Whoever holds it may be inside OpenGrant.
    if (++written < 50) {
      ASSERT_TRUE(pair.to_b->Write({&piece, 1}, {.grant = *grant, .on_end = again}).ok());
    }
  };
  {
    const std::lock_guard lock(mutex);
    ASSERT_TRUE(pair.to_b->Write({&piece, 1}, {.grant = *grant, .on_end = again}).ok());
  }
  while (written < 50) {
    const std::lock_guard lock(mutex);
    auto other = pair.to_b->OpenGrant({.transfers = 1});
    ASSERT_TRUE(other.ok());
    pair.to_b->RevokeGrant(*other, {});
  }
}

TEST_F(TransferTest, AHandleMayOutliveItsEndpoint) {
  FakeNet::SetDefaults("fast", {.hold = true});
  auto pair = std::make_unique<Pair>();
  auto write = pair->WriteAll();
  auto connection = *pair->to_b;
  pair.reset();
  EXPECT_EQ(write->Wait().code(), Code::kCancelled);
  EXPECT_TRUE(write->fenced());
  write->Cancel();
  EXPECT_EQ(connection.Write({}, {}).status().code(), Code::kCancelled);
  EXPECT_EQ(connection.OpenGrant({}).status().code(), Code::kCancelled);
  connection.RevokeGrant({1, 1}, {});
  connection.Close();
  EXPECT_FALSE(connection.status().ok());
}

}  // namespace
}  // namespace weightcast::endpoint
