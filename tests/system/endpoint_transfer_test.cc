#include <random>

#include "system/endpoint_linked.h"

namespace weightcast::system_test {
namespace {

class EndpointTransfer : public ::testing::TestWithParam<PeerSetup> {};

INSTANTIATE_TEST_SUITE_P(Paths, EndpointTransfer,
                         ::testing::Values(PeerSetup{.transport = "shm", .shared = true},
                                           PeerSetup{.transport = "shm", .shared = false},
                                           PeerSetup{.transport = "tcp", .shared = false}),
                         NameOf);

TEST_P(EndpointTransfer, AllSizesInBothDirections) {
  const size_t most = kSanitized ? size_t{8} << 20 : size_t{64} << 20;
  Linked linked(GetParam(), most);
  EXPECT_EQ(linked.connection->transport_name(), GetParam().transport);
  uint64_t seed = 0;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{(1 << 20) + 1}, most}) {
    const auto bytes = linked.area.bytes.subspan(0, size);
    Fill(bytes, ++seed);
    const Piece piece = linked.At(0, size);
    ASSERT_TRUE(linked.connection->Write({&piece, 1}, {})->Wait().ok()) << size;
    std::fill(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(std::min(size, size_t{1} << 20)),
              std::byte{0});
    ASSERT_TRUE(linked.connection->Read({&piece, 1}, {})->Wait().ok()) << size;
    EXPECT_TRUE(IsFilled(bytes, seed)) << size;
  }
  linked.peer.Do(StrCat("filled ", seed));
  // And the peer writes to us.
  linked.peer.Do("fill 77");
  linked.peer.Do("write 0 0 " + Hex(linked.region->Descriptor()));
  EXPECT_TRUE(IsFilled(linked.area.bytes, 77));
}

TEST_P(EndpointTransfer, TenThousandPiecesUnderAGrant) {
  constexpr size_t kPieces = 10'000;
  constexpr size_t kEach = 777;
  Linked linked(GetParam(), kPieces * kEach, "granted");
  Fill(linked.area.bytes, 5);
  std::vector<Piece> pieces;
  for (size_t i = 0; i < kPieces; ++i) pieces.push_back(linked.At((i * 7919 % kPieces) * kEach, kEach));
  std::istringstream granted(linked.peer.Do("grant 1"));
  TransferOptions options{.signal = 0, .checksum = true};
  granted >> options.grant.slot >> options.grant.id;
  auto write = linked.connection->Write(pieces, options);
  ASSERT_TRUE(write.ok()) << write.status().ToString();
  EXPECT_TRUE(write->Wait().ok()) << write->Wait().ToString();
  linked.peer.Do("arrived");
  EXPECT_EQ(linked.peer.Hash(), linked.Hash());
  linked.peer.Do("revoke");
  EXPECT_EQ(linked.connection->Write(pieces, options)->Wait().code(), Code::kFenced);
}

TEST_P(EndpointTransfer, BothDirectionsAtOnce) {
  constexpr size_t kSize = 4 << 20;
  Linked linked(GetParam(), kSize);
  Area landing(kSize, GetParam().shared);
  auto region = linked.endpoint->Register(landing.bytes, Access::kReadWrite);
  ASSERT_TRUE(region.ok());
  linked.peer.Do("fill 9");
  const std::string command = "write 0 0 " + Hex(region->Descriptor());
  Area zeros(kSize, GetParam().shared);
  for (int round = 0; round < 5; ++round) {
    linked.peer.Tell(command);
    const Piece piece = linked.At(0, kSize);
    ASSERT_TRUE(linked.connection->Read({&piece, 1}, {})->Wait().ok());
    ASSERT_EQ(linked.peer.Answer(), "ok");
    EXPECT_TRUE(std::equal(landing.bytes.begin(), landing.bytes.end(), linked.area.bytes.begin()));
  }
}

TEST_P(EndpointTransfer, ManyThreadsWriteAndReadBack) {
  constexpr size_t kThreads = 6;
  constexpr size_t kEach = 512 << 10;
  Linked linked(GetParam(), kThreads * kEach);
  std::vector<std::thread> threads;
  std::atomic<size_t> right{0};
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      const auto mine = linked.area.bytes.subspan(i * kEach, kEach);
      for (uint64_t round = 1; round <= 40; ++round) {
        const size_t length = round % 4 == 0 ? kEach : 1 + random() % 5000;
        Fill(mine.first(length), 100 * i + round);
        const Piece piece = linked.At(i * kEach, length);
        if (!linked.connection->Write({&piece, 1}, {})->Wait().ok()) return;
        std::fill_n(mine.begin(), length, std::byte{0});
        if (!linked.connection->Read({&piece, 1}, {})->Wait().ok()) return;
        if (!IsFilled(mine.first(length), 100 * i + round)) return;
      }
      ++right;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, kThreads);
}

TEST_P(EndpointTransfer, ANoticeComesAfterTheBytesBeforeIt) {
  constexpr size_t kSize = 1 << 20;  // Four chunks, over all lanes.
  Linked linked(GetParam(), kSize);
  EXPECT_TRUE(std::ranges::count(linked.peer.addresses(), linked.connection->address()) == 1)
      << linked.connection->address();
  linked.peer.Tell("echo");
  for (uint64_t seed = 1; seed <= (kSanitized ? 10 : 50); ++seed) {
    Fill(linked.area.bytes, seed);
    const Piece piece = linked.At(0, kSize);
    ASSERT_TRUE(linked.connection->Write({&piece, 1}, {})->Wait().ok());
    ASSERT_TRUE(linked.connection->Notify(std::to_string(seed)).ok());
    auto echo = linked.connection->TakeNotice(Soon());
    ASSERT_TRUE(echo.ok()) << echo.status().ToString();
    EXPECT_EQ(*echo, std::to_string(seed));
  }
  ASSERT_TRUE(linked.connection->Notify("").ok());
  EXPECT_EQ(linked.peer.Answer(), "ok");
}

TEST_P(EndpointTransfer, AStoppedPeerHoldsNoticesBack) {
  Linked linked(GetParam(), 4096);
  linked.peer.Signal(SIGSTOP);
  uint64_t sent = 0;
  while (linked.connection->Notify(std::to_string(sent + 1) + std::string(10'000, ' ')).ok()) ++sent;
  EXPECT_GT(sent, 20U);
  EXPECT_TRUE(linked.connection->status().ok());
  linked.peer.Signal(SIGCONT);
  EXPECT_EQ(linked.peer.Ask("take " + std::to_string(sent)), "ok");
  EXPECT_TRUE(linked.connection->Notify("", Soon()).ok());
}

TEST_P(EndpointTransfer, AfterACancelledWriteIsFencedNothingLands) {
  constexpr size_t kSize = 16 << 20;
  Linked linked(GetParam(), kSize);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Fill(linked.area.bytes, seed);
    const Piece piece = linked.At(0, kSize);
    auto write = linked.connection->Write({&piece, 1}, {});
    ASSERT_TRUE(write.ok());
    write->Cancel();
    const Status status = write->WaitFenced(Soon());
    EXPECT_TRUE(status.ok() || status.code() == Code::kCancelled) << status.ToString();
    EXPECT_TRUE(write->fenced());
    Fill(linked.area.bytes, 1000 + seed);  // Would be seen if it were still read.
    const uint64_t then = linked.peer.Hash();
    EXPECT_EQ(linked.peer.Hash(), then);
    // The connection is as good as before.
    const Piece byte = linked.At(0, 0);
    EXPECT_TRUE(linked.connection->Write({&byte, 1}, {})->Wait().ok());
  }
}

TEST(EndpointPaths, SharedMemoryIsFoundByItself) {
  Linked linked(PeerSetup{}, 1 << 20);
  EXPECT_EQ(linked.connection->transport_name(), "shm");
  EXPECT_NE(linked.connection->Describe().find("to peer 0 at 127.0.0.1:"), std::string::npos)
      << linked.connection->Describe();
}

}  // namespace
}  // namespace weightcast::system_test
