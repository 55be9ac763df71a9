// Endpoints over two rails of the kernel's own RDMA stack, whose wires are pulled and whose peers are killed.
#include <array>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iostream>

#include "system/endpoint_linked.h"

namespace weightcast::system_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// One end of each rail is ours, the other one the peer's.
PeerSetup Ours(std::string lease = "5") {
  return {.transport = "verbs", .shared = true, .lease = std::move(lease), .nics = "rxe0,rxe2"};
}
PeerSetup Theirs(std::string lease = "5") {
  return {.transport = "verbs", .shared = true, .lease = std::move(lease), .nics = "rxe1,rxe3"};
}

std::string ReadLine(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}
uint64_t Packets(int device, const std::string& counter) {
  return std::stoull(ReadLine(StrCat("/sys/class/infiniband/rxe", device, "/ports/1/hw_counters/", counter)));
}
bool IsActive(int device) {
  return ReadLine(StrCat("/sys/class/infiniband/rxe", device, "/ports/1/state")).find("ACTIVE") !=
         std::string::npos;
}

void Rails(const std::string& what) {
  const std::string command = StrCat(WC_RAILS, " ", what);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

/// What each device has sent since.
class Traffic {
 public:
  Traffic() { Again(); }
  void Again() {
    for (int device = 0; device < 4; ++device)
      before_[static_cast<size_t>(device)] = Packets(device, "sent_pkts");
  }
  [[nodiscard]] double Of(int device) const {
    return static_cast<double>(Packets(device, "sent_pkts") - before_[static_cast<size_t>(device)]);
  }
  /// Share of the first of two devices.
  [[nodiscard]] double Share(int first, int second) const { return Of(first) / (Of(first) + Of(second)); }

 private:
  std::array<uint64_t, 4> before_{};
};

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class RailTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("RXEVM") == nullptr || access("/sys/class/infiniband/rxe3", F_OK) != 0) {
      GTEST_SKIP() << "needs rxe0 to rxe3 of the machine that `make test-rdma` boots";
    }
  }
  static bool AllLanesUp(const Linked& linked) {
    const std::string text = linked.connection->Describe();
    return text.find("verbs: 4 lanes") != std::string::npos &&
           text.find(" 4 lanes, to ") != std::string::npos;
  }
  /// All of it, there, and compared there.
  static void WriteAll(Linked& linked, uint64_t seed) {
    Fill(linked.area.bytes, seed);
    const Piece piece = linked.At(0, linked.area.bytes.size());
    const Status status = linked.connection->Write({&piece, 1}, {})->Wait();
    ASSERT_TRUE(status.ok()) << status.ToString();
    linked.peer.Do(StrCat("filled ", seed));
  }
};

/// The lanes take chunks as they have room: even as far as the wires are.
constexpr double kEven = 0.05;

/// The wires are the limit, each of the same speed; not the emulated processors.
struct Slow {
  Slow() { Rails("slow 0 1"); }
  Slow(const Slow&) = delete;
  Slow& operator=(const Slow&) = delete;
  ~Slow() { Rails("free 0 1"); }
};

TEST_F(RailTest, BytesAreSplitEvenly) {
  const Slow slow;
  Linked linked(Ours(), Theirs(), 64 * kMiB);
  ASSERT_EQ(linked.connection->transport_name(), "verbs");
  EXPECT_TRUE(AllLanesUp(linked)) << linked.connection->Describe();
  WriteAll(linked, 1);
  const Traffic written;
  WriteAll(linked, 2);
  EXPECT_NEAR(written.Share(0, 2), 0.5, kEven);
  EXPECT_GE(written.Of(0) + written.Of(2), 64.0 * kMiB / 4096);
  const Traffic read;
  linked.peer.Do("fill 3");
  const Piece piece = linked.At(0, linked.area.bytes.size());
  ASSERT_TRUE(linked.connection->Read({&piece, 1}, {})->Wait().ok());
  EXPECT_TRUE(IsFilled(linked.area.bytes, 3));
  EXPECT_NEAR(read.Share(1, 3), 0.5, kEven);
  std::cout << "rxe0's share of a write " << written.Share(0, 2) << ", rxe1's of a read " << read.Share(1, 3)
            << "\n";
}

TEST_F(RailTest, ATransferGoesOnWithoutARailAndTheRailComesBack) {
  const Slow slow;
  Linked linked(Ours(), Theirs(), 256 * kMiB);
  ASSERT_TRUE(Eventually([&] { return AllLanesUp(linked); })) << linked.connection->Describe();
  testing::internal::CaptureStderr();
  Fill(linked.area.bytes, 1);
  const Piece piece = linked.At(0, linked.area.bytes.size());
  Traffic traffic;
  auto write = linked.connection->Write({&piece, 1}, {});
  ASSERT_TRUE(write.ok());
  constexpr double kPackets = 256.0 * kMiB / 4096;
  ASSERT_TRUE(Eventually([&] { return traffic.Of(2) > kPackets / 16; }));
  const double sent = traffic.Of(0) + traffic.Of(2);
  // The command may end long after the wire is down: the emulated processors are busy with both wires.
  const auto pulled = std::async(std::launch::async, [] { Rails("down 1"); });
  ASSERT_TRUE(Eventually([] { return !IsActive(2); }));
  EXPECT_FALSE(write->ended()) << "was over before the wire was pulled";
  const double alone = traffic.Of(0);
  const double of_pulled = traffic.Of(2);
  const Status status = write->Wait();
  const std::string warnings = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(status.ok()) << status.ToString() << "\n" << warnings;
  linked.peer.Do("filled 1");
  EXPECT_LT(sent, kPackets * 3 / 4) << "the wire was pulled late";
  // At least: some packets are sent again.
  EXPECT_GE(traffic.Of(0) + of_pulled, kPackets) << "the other one has not carried the rest";
  EXPECT_GT(traffic.Of(0), alone);
  EXPECT_EQ(Count(warnings, "rxe2: port 1 is not up; check cable and switch; going on without it"), 1U)
      << warnings;
  EXPECT_TRUE(Eventually([&] {
    return Count(linked.peer.Log(), "rxe3: port 1 is not up; check cable and switch; going on without it") ==
           1U;
  })) << linked.peer.Log();
  EXPECT_NE(linked.connection->Describe().find(" 2 lanes, to "), std::string::npos)
      << linked.connection->Describe();

  pulled.wait();
  Rails("up 1");
  const TimePoint then = Clock::now();
  ASSERT_TRUE(Eventually([&] { return AllLanesUp(linked); })) << linked.connection->Describe();
  std::cout << "all lanes were up again after " << Seconds(Clock::now() - then) << " s\n";
  traffic.Again();
  WriteAll(linked, 2);
  EXPECT_NEAR(traffic.Share(0, 2), 0.5, kEven);
}

/// How a peer may be lost.
enum class Loss : uint8_t { kKilled, kUnplugged, kSilent };

struct Case {
  Loss loss;
  const char* lease;
};
std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  constexpr std::array kNames = {"Killed", "Unplugged", "Silent"};
  return StrCat(kNames[static_cast<size_t>(info.param.loss)], "WithLease", info.param.lease);
}

class PeerLost : public RailTest, public ::testing::WithParamInterface<Case> {
 protected:
  static void Fail(Peer& peer) {
    if (GetParam().loss == Loss::kKilled) return peer.Kill();
    Rails(GetParam().loss == Loss::kUnplugged ? "down 0 1" : "lose 0 1");
  }
  static void Repair() {
    if (GetParam().loss == Loss::kUnplugged) Rails("up 0 1");
    if (GetParam().loss == Loss::kSilent) Rails("free 0 1");
    for (int device = 0; device < 4; ++device) EXPECT_TRUE(Eventually([&] { return IsActive(device); }));
  }
};

struct End {
  Status status;
  TimePoint when;
};
/// Writes until it fails.
End WriteWithoutEnd(Connection& connection, const Piece& piece) {
  Status status;
  while (status.ok()) {
    auto write = connection.Write({&piece, 1}, {});
    status = write.ok() ? write->Wait() : write.status();
    const TimePoint now = Clock::now();
    if (status.ok()) continue;
    EXPECT_TRUE(!write.ok() || write->WaitFenced(Soon()).ok() || write->fenced());
    return {status, now};
  }
  return {};
}

/// Again and again, both writing without end: every call ends with an error in time, on both sides, and the
/// same endpoint writes to the peer's next process.
TEST_P(PeerLost, EveryCallEndsInTimeAndTheNextPeerIsReached) {
  constexpr size_t kSize = 8 * kMiB;
  constexpr int kRounds = 5;
  const double lease = std::stod(GetParam().lease);
  std::vector<std::unique_ptr<Peer>> peers;  // All forked before there are threads.
  for (int i = 0; i <= kRounds; ++i) peers.push_back(std::make_unique<Peer>(Theirs(GetParam().lease), kSize));
  auto endpoint = *Endpoint::Create(OptionsOf(Ours(GetParam().lease), "test"));
  Area area(kSize, true);
  Area landing(kSize, true);
  auto source = endpoint->Register(area.bytes, Access::kLocal);
  auto target = endpoint->Register(landing.bytes, Access::kGranted);
  ASSERT_TRUE(source.ok() && target.ok());
  double longest = 0;
  for (int round = 0; round <= kRounds; ++round) {
    SCOPED_TRACE(round);
    Peer& peer = *peers[static_cast<size_t>(round)];
    peer.Open();
    const TimePoint began = Clock::now();
    auto connection = endpoint->Connect(peer.addresses(), peer.identity(), Soon());
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    EXPECT_LT(Seconds(Clock::now() - began), 5);
    peer.Do("accepted");
    const auto imported = connection->Import(peer.Region("readwrite"));
    ASSERT_TRUE(imported.ok());
    const Piece piece{*source->Slice(0, kSize), *imported->Slice(0, kSize)};
    const auto seed = static_cast<uint64_t>(round) + 1;
    Fill(area.bytes, seed);
    ASSERT_TRUE(connection->Write({&piece, 1}, {})->Wait().ok());
    peer.Do(StrCat("filled ", seed));
    if (round == kRounds) break;
    auto grant = connection->OpenGrant({.transfers = 1});
    ASSERT_TRUE(grant.ok());
    peer.Tell(StrCat("flood ", grant->slot, " ", grant->id, " ", Hex(target->Descriptor())));
    ASSERT_TRUE(Eventually([&] { return connection->ProgressOf(*grant).chunks_arrived > 0; }));
    const Traffic traffic;
    auto writes = std::async(std::launch::async, [&] { return WriteWithoutEnd(*connection, piece); });
    ASSERT_TRUE(Eventually([&] { return traffic.Of(0) > 1000 && traffic.Of(1) > 1000; }));
    Fail(peer);
    const TimePoint then = Clock::now();
    const auto look = [&](TimePoint when, const std::string& what) {
      longest = std::max(longest, Seconds(when - then));
      EXPECT_LT(Seconds(when - then), lease) << what;
    };
    if (GetParam().loss != Loss::kKilled) {
      const std::string answer = peer.Answer();
      look(Clock::now(), StrCat(answer, "\n", peer.Log()));
      EXPECT_TRUE(answer.starts_with("error ")) << answer;
    }
    const auto [status, when] = writes.get();
    look(when, status.ToString());
    EXPECT_TRUE(status.code() == Code::kPeerDead || status.code() == Code::kUnavailable) << status.ToString();
    EXPECT_FALSE(connection->status().ok());
    if (GetParam().loss != Loss::kKilled) peer.Kill();
    Repair();
  }
  std::cout << "the longest wait for an error was " << longest << " s\n";
}
INSTANTIATE_TEST_SUITE_P(Ways, PeerLost,
                         ::testing::Values(Case{Loss::kKilled, "5"}, Case{Loss::kKilled, "1"},
                                           Case{Loss::kUnplugged, "5"}, Case{Loss::kUnplugged, "1"},
                                           Case{Loss::kSilent, "5"}, Case{Loss::kSilent, "1"}),
                         NameOf);

}  // namespace
}  // namespace weightcast::system_test
