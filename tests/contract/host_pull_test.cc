// One writer and two targets of one host: the targets read for themselves.
#include "contract/names.h"
#include "contract/suite.h"
#include "trace/metrics.h"

namespace weightcast::transport {
namespace {

constexpr size_t kBytes = 8U << 20;
constexpr uint64_t kPieces = 16;

struct Target {
  Target(Side& from, LinkId at_writer) : writer(from), link(at_writer) {
    memory.Wipe();
    const auto deadline = Clock::now() + kPatience;
    const auto offer = side.transport().OpenLink(kLink, Role::kInitiator, writer.self(), "", deadline);
    const auto answer = writer.transport().OpenLink(link, Role::kResponder, side.self(), *offer, deadline);
    EXPECT_TRUE(side.transport().Establish(kLink, *answer).ok());
    EXPECT_TRUE(PumpUntil({&writer, &side},
                          [&] { return writer.ready.contains(link) && side.ready.contains(kLink); }));
    EXPECT_TRUE(side.transport().OpenGrant(kLink, kGrant, {}).ok());
    remote = writer.Import(link, side.Register(memory, Access::kGranted));
    writer.partner = &side;
  }
  void Write(uint32_t local, uint64_t piece) {
    const uint64_t size = kBytes / kPieces;
    writer.Post(link, 0,
                {.kind = OpKind::kWrite,
                 .has_signal = piece + 1 == kPieces,
                 .local = local,
                 .local_offset = piece * size,
                 .remote = remote,
                 .remote_offset = piece * size,
                 .length = size,
                 .grant = kGrant,
                 .signal = {.grant = kGrant, .transfer = 1, .chunks = 1}});
  }

  Side& writer;
  const LinkId link;
  Side side{{"shm", &CreateShmTransport}};
  TestMemory memory{kBytes, TestPlace::kPrivate};
  RemoteRegion remote{};
};

TEST(HostPullTest, TwoTargetsOfOneWriterReadAllOfItForThemselves) {
  Side writer{{"shm", &CreateShmTransport}};
  const TestMemory source(kBytes, TestPlace::kPrivate);
  source.Fill(1);
  const Described local = writer.Register(source, Access::kLocal);
  Target one(writer, LinkId{4});
  Target two(writer, LinkId{5});
  const trace::Counter& pulled = trace::CounterNamed("shm.pulled_bytes");
  const uint64_t before = pulled.value();
  for (uint64_t piece = 0; piece < kPieces; ++piece) {
    one.Write(local.name.id, piece);
    two.Write(local.name.id, piece);
  }
  ASSERT_TRUE(PumpUntil({&writer, &one.side, &two.side}, [&] {
    return writer.pending() == 0 && one.side.signals.size() == 1 && two.side.signals.size() == 1;
  }));
  for (const auto& [cookie, completion] : writer.completions) EXPECT_EQ(completion.code, Code::kOk);
  EXPECT_TRUE(SameBytes(one.memory.Read(), source.Read()));
  EXPECT_TRUE(SameBytes(two.memory.Read(), source.Read()));
  // What Post and the first turn move, before two queues are seen, the writer moves for itself.
  EXPECT_GE(pulled.value() - before, kBytes);
  EXPECT_LE(pulled.value() - before, 2 * kBytes);
}

}  // namespace
}  // namespace weightcast::transport
