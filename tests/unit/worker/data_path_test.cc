#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "unit/worker/planned.h"
#include "weightcast/endpoint.h"
#include "weights.h"
#include "worker/receiver.h"
#include "worker/send_plan.h"
#include "worker/sender.h"

// From the user's tensors on one side to those on the other, over real endpoints, without a controller.

namespace weightcast::worker {
namespace {

using test::Weights;
using testing::HasSubstr;

std::unique_ptr<Endpoint> MakeEndpoint(const Settings& settings, std::string role, uint32_t rank,
                                       std::function<void(Connection)> on_connection = {}) {
  EndpointOptions options;
  options.self = {.job = "test", .role = std::move(role), .engine = "", .rank = rank, .incarnation = 0};
  options.token = "the-token-of-these-tests";
  options.settings = settings;
  options.on_connection = std::move(on_connection);
  auto endpoint = Endpoint::Create(std::move(options));
  EXPECT_TRUE(endpoint.ok()) << endpoint.status().ToString();
  return std::move(*endpoint);
}

/// Gives the bytes of memory, as files would; `changed` is what the check at the end says.
class MemoryReader final : public ShardReader {
 public:
  MemoryReader(std::vector<Shard> shards, Status changed)
      : shards_(std::move(shards)), changed_(std::move(changed)) {}
  Status Read(size_t shard, uint64_t offset, std::span<std::byte> out) override {
    EXPECT_EQ(checks, 0) << "read after the check";
    std::memcpy(out.data(), shards_[shard].memory.address + offset, out.size());
    read += out.size();
    return Status::Ok();
  }
  Status Check() override {
    ++checks;
    return changed_;
  }
  std::atomic<uint64_t> read{0};
  std::atomic<int> checks{0};

 private:
  const std::vector<Shard> shards_;
  const Status changed_;
};

/// Some trainers and the ranks of one engine, planned and connected.
class DataPath : public testing::Test {
 protected:
  struct TrainerSide {
    std::unique_ptr<Endpoint> endpoint;
    std::shared_ptr<const SendPlan> plan;
    Flag ended, fenced;
    std::optional<SendEnded> outcome;
    std::unique_ptr<Sender> sender;  ///< Its threads end before what they write to.
  };
  struct InferenceSide {
    std::unique_ptr<Endpoint> endpoint;
    std::shared_ptr<LandingMemory> memory;
    std::shared_ptr<const ReceivePlan> plan;
    std::shared_ptr<GrantSet> grants;
    Flag complete, fenced;
    std::atomic<size_t> accepted{0};
    Flag all_accepted;
  };

  DataPath() {
    settings_.bind = "127.0.0.1";
    settings_.lease = FromSeconds(5);
  }

  void Build(const std::vector<std::vector<Shard>>& sources, const std::vector<std::vector<Shard>>& sinks,
             LandingMode mode = LandingMode::kInPlace) {
    const Planned planned(sources, sinks);
    for (size_t r = 0; r < sinks.size(); ++r)
      AddSink(static_cast<uint32_t>(r), sinks[r], mode, sources.size());
    for (size_t r = 0; r < sources.size(); ++r) {
      trainers_.push_back(std::make_unique<TrainerSide>());
      trainers_[r]->endpoint = MakeEndpoint(settings_, "trainer", static_cast<uint32_t>(r));
    }
    for (size_t r = 0; r < sources.size(); ++r)
      Connect(*trainers_[r], planned.For(plan::RankTable::Role::kTrainer, r), sources[r]);
    for (size_t r = 0; r < sinks.size(); ++r)
      PlanSink(*inference_[r], planned.For(plan::RankTable::Role::kInference, r));
  }

  void AddSink(uint32_t rank, const std::vector<Shard>& shards, LandingMode mode, size_t sources) {
    inference_.push_back(std::make_unique<InferenceSide>());
    auto& side = *inference_.back();
    side.endpoint = MakeEndpoint(settings_, "inference", rank, [&side, sources](const Connection&) {
      if (++side.accepted == sources) side.all_accepted.Set();
    });
    auto memory = LandingMemory::Register(*side.endpoint, shards, mode);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    side.memory = *memory;
  }

  void Connect(TrainerSide& side, const std::string& table, const std::vector<Shard>& shards) {
    auto plan = std::make_shared<SendPlan>();
    auto listed = shards;
    for (Shard& shard : listed)
      if (reader_ != nullptr) shard.memory = {};
    auto memory = RegisterSources(*side.endpoint, listed, NameRules(), reader_);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    plan->memory = *memory;
    auto decoded = plan::DecodeRankTable(table);
    ASSERT_TRUE(decoded.ok());
    plan->table = std::move(*decoded);
    plan->batches = CutIntoBatches(plan->table);
    ASSERT_TRUE(FindSources(*plan).ok());
    for (const int peer : plan->table.peers) {
      auto& sink = *inference_[static_cast<size_t>(peer)];
      auto connection = side.endpoint->Connect(sink.endpoint->Addresses(), sink.endpoint->self(),
                                               Clock::now() + FromSeconds(10));
      ASSERT_TRUE(connection.ok()) << connection.status().ToString();
      auto imported = std::make_shared<ImportedRegions>(*connection);
      const protocol::LandingMap map = sink.memory->Map();
      for (const auto& region : map.regions) ASSERT_TRUE(imported->Add(region).ok());
      ASSERT_TRUE(FindPlaces(*plan, peer, map, imported->regions()).ok());
      plan->targets.push_back({static_cast<uint32_t>(peer), "inference", *connection, imported});
    }
    side.plan = plan;
    auto sender = Sender::Create(
        *side.endpoint, settings_,
        // One thread calls these, for one destination after the other.
        Sender::Callbacks{.on_ended =
                              [&side, left = plan->targets.size()](const SendEnded& ended) mutable {
                                if (!side.outcome || side.outcome->status.ok()) side.outcome = ended;
                                if (--left == 0) side.ended.Set();
                              },
                          .on_fenced =
                              [&side, left = plan->targets.size()](const SendFenced&) mutable {
                                if (--left == 0) side.fenced.Set();
                              }});
    ASSERT_TRUE(sender.ok()) << sender.status().ToString();
    side.sender = std::move(*sender);
  }

  void PlanSink(InferenceSide& side, const std::string& table) {
    protocol::Plan message;
    message.epoch = 1;
    message.table = table;
    for (size_t r = 0; r < trainers_.size(); ++r) {
      message.peers.push_back({.name = {protocol::Role::kTrainer, "", static_cast<uint32_t>(r)},
                               .incarnation = trainers_[r]->endpoint->self().incarnation,
                               .addresses = {}});
    }
    ASSERT_TRUE(side.all_accepted.Wait());
    auto plan = MakeReceivePlan(message, "", side.memory);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    side.plan = *plan;
  }

  /// Grants, then sends, to the first destination of each trainer's table and so on.
  void Open(InferenceSide& side) {
    auto opened = GrantSet::Open(*side.endpoint, side.plan, /*part=*/0,
                                 {.checksums = settings_.checksum != 0}, [&side] { side.complete.Set(); });
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    side.grants = *opened;
  }
  void Send(size_t sink) {
    for (const auto& grant : inference_[sink]->grants->grants()) {
      auto& side = *trainers_[grant.source];
      const int target = side.plan->TargetOf(static_cast<uint32_t>(sink));
      ASSERT_GE(target, 0);
      side.sender->Start(side.plan, static_cast<size_t>(target),
                         {.update = update_, .version = {}, .slot = grant.slot, .grant = grant.id});
    }
  }
  void Fence(InferenceSide& side) {
    side.grants->Revoke([&side] { side.fenced.Set(); });
    ASSERT_TRUE(side.fenced.Wait());
  }
  void Run() {
    for (size_t i = 0; i < inference_.size(); ++i) {
      Open(*inference_[i]);
      Send(i);
    }
    for (auto& side : inference_) {
      ASSERT_TRUE(side->complete.Wait()) << "not every transfer arrived";
      Fence(*side);
    }
    for (auto& side : trainers_) {
      ASSERT_TRUE(side->ended.Wait());
      EXPECT_TRUE(side->outcome->status.ok()) << side->outcome->status.ToString();
      ASSERT_TRUE(side->fenced.Wait());
    }
  }

  Settings settings_;
  std::shared_ptr<MemoryReader> reader_;
  const protocol::UpdateId update_{.term = {1, 1}, .epoch = 1, .sequence = 1, .attempt = 0};
  std::vector<std::unique_ptr<InferenceSide>> inference_;
  std::vector<std::unique_ptr<TrainerSide>> trainers_;
};

TEST_F(DataPath, ReshardsOverEachTransport) {
  for (const char* transport : {"tcp", "shm"}) {
    SCOPED_TRACE(transport);
    settings_.transport = transport;
    trainers_.clear();
    inference_.clear();
    const auto model = test::SmallModel(DType::kBF16);
    Weights t0(model, test::Cut::kRows, 0, 2), t1(model, test::Cut::kRows, 1, 2);
    Weights i0(model, test::Cut::kColumns, 0, 2), i1(model, test::Cut::kColumns, 1, 2, /*shared=*/false);
    t0.Fill(5);
    t1.Fill(5);
    Build({t0.shards(), t1.shards()}, {i0.shards(), i1.shards()});
    ASSERT_FALSE(HasFatalFailure());
    Run();
    EXPECT_EQ(i0.Wrong(5), 0);
    EXPECT_EQ(i1.Wrong(5), 0);
    EXPECT_EQ(inference_[0]->grants->bytes(), i0.bytes());
  }
}

TEST_F(DataPath, CastsAndGathersWithinTheWatermark) {
  settings_.staging = 16 << 20;
  const std::vector<TensorInfo> wide = {{"w", DType::kF32, {2048, 3000}}, {"v", DType::kF32, {33}}};
  const std::vector<TensorInfo> narrow = {{"w", DType::kBF16, {2048, 3000}}, {"v", DType::kBF16, {33}}};
  Weights trainer(wide, test::Cut::kWhole, 0, 1), sink(narrow, test::Cut::kWhole, 0, 1);
  trainer.Fill(2);
  Build({trainer.shards()}, {sink.shards()}, LandingMode::kShadow);
  ASSERT_FALSE(HasFatalFailure());
  Run();
  EXPECT_NE(sink.Wrong(2), 0) << "landed in the spare buffer only";
  EXPECT_TRUE(inference_[0]->memory->CopyToLive().ok());
  EXPECT_EQ(sink.Wrong(2), 0);
  EXPECT_GT(trainers_[0]->sender->peak_staging(), 0U);
  EXPECT_LE(trainers_[0]->sender->peak_staging(), settings_.staging);
}

TEST_F(DataPath, SendsWhatIsNotContiguous) {
  // Columns of a wider matrix, as a view has them.
  const std::vector<TensorInfo> model = {{"w", DType::kU64, {600, 40}}};
  Weights whole(model, test::Cut::kWhole, 0, 1), sink(model, test::Cut::kWhole, 0, 1);
  whole.Fill(9);
  std::vector<uint64_t> transposed(600 * 40);
  const auto* values = reinterpret_cast<const uint64_t*>(whole.shards()[0].memory.address);
  for (size_t i = 0; i < 600; ++i)
    for (size_t j = 0; j < 40; ++j) transposed[j * 600 + i] = values[i * 40 + j];
  auto shards = whole.shards();
  shards[0].memory = HostMemory(std::as_writable_bytes(std::span(transposed)));
  shards[0].strides = {1, 600};
  Build({shards}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  Run();
  EXPECT_EQ(sink.Wrong(9), 0);
}

TEST_F(DataPath, SendsWhatAReaderGivesAndChecksItOnce) {
  for (const DType landing : {DType::kF32, DType::kBF16}) {
    for (const auto mode : {LandingMode::kInPlace, LandingMode::kShadow}) {
      trainers_.clear();
      inference_.clear();
      // Long rows, and thin columns of them.
      const std::vector<TensorInfo> model = {{"w", DType::kF32, {2048, 3000}}, {"v", DType::kF32, {33}}};
      const std::vector<TensorInfo> landed = {{"w", landing, {2048, 3000}}, {"v", landing, {33}}};
      const test::Cut cut = mode == LandingMode::kShadow ? test::Cut::kWhole : test::Cut::kColumns;
      Weights trainer(model, test::Cut::kWhole, 0, 1);
      Weights sink(landed, cut, 0, 1);
      trainer.Fill(2);
      reader_ = std::make_shared<MemoryReader>(trainer.shards(), Status::Ok());
      Build({trainer.shards()}, {sink.shards()}, mode);
      ASSERT_FALSE(HasFatalFailure());
      Run();
      EXPECT_TRUE(inference_[0]->memory->CopyToLive().ok());
      EXPECT_EQ(sink.Wrong(2), 0);
      EXPECT_EQ(reader_->checks, 1);
    }
  }
}

TEST_F(DataPath, WhatWasReadOfAFileThatHasChangedIsNeverComplete) {
  const std::vector<TensorInfo> model = {{"w", DType::kU64, {4 << 20}}};
  Weights trainer(model, test::Cut::kWhole, 0, 1), sink(model, test::Cut::kWhole, 0, 1);
  reader_ = std::make_shared<MemoryReader>(trainer.shards(), Status(Code::kCorrupt, "m was changed"));
  Build({trainer.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  Open(*inference_[0]);
  Send(0);
  ASSERT_TRUE(trainers_[0]->ended.Wait());
  EXPECT_EQ(trainers_[0]->outcome->status, Status(Code::kCorrupt, "m was changed"));
  EXPECT_FALSE(trainers_[0]->outcome->path) << "no other path helps";
  ASSERT_TRUE(trainers_[0]->fenced.Wait());
  EXPECT_EQ(reader_->read, 32U << 20) << "all was read before the check";
  Fence(*inference_[0]);
  EXPECT_TRUE(inference_[0]->grants->Missing(trainers_[0]->endpoint->self().incarnation) != nullptr);
}

TEST_F(DataPath, ChecksumsTellWhatArrivedChanged) {
  settings_.checksum = 1;
  const auto model = test::SmallModel(DType::kF16);
  Weights t0(model, test::Cut::kRows, 0, 2), t1(model, test::Cut::kRows, 1, 2),
      sink(model, test::Cut::kWhole, 0, 1);
  t0.Fill(1);
  t1.Fill(1);
  Build({t0.shards(), t1.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  Run();
  const auto& grants = *inference_[0]->grants;
  EXPECT_TRUE(grants.Verify().ok()) << grants.Verify().ToString();
  std::byte* last = sink.shards()[0].memory.address + 2200 * 1024 * 2 - 1;
  *last ^= std::byte{1};
  EXPECT_EQ(grants.Verify().code(), Code::kCorrupt);
  EXPECT_THAT(grants.Verify().message(), HasSubstr("trainer 1"));
  *last ^= std::byte{1};
  EXPECT_TRUE(grants.Verify().ok());
}

TEST_F(DataPath, SenderWithoutChecksumsIsNamed) {
  const auto model = test::SmallModel(DType::kF16);
  Weights trainer(model, test::Cut::kWhole, 0, 1), sink(model, test::Cut::kWhole, 0, 1);
  Build({trainer.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  settings_.checksum = 1;  // At the receiver alone: the sender was made before.
  Run();
  EXPECT_EQ(inference_[0]->grants->Verify().code(), Code::kProtocol);
}

TEST_F(DataPath, StoppedSendingIsFencedAndSaysNothing) {
  const std::vector<TensorInfo> model = {{"w", DType::kU64, {8 << 20}}};
  Weights trainer(model, test::Cut::kWhole, 0, 1), sink(model, test::Cut::kWhole, 0, 1);
  Build({trainer.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  Open(*inference_[0]);
  Send(0);
  trainers_[0]->sender->Stop(update_, 0);
  EXPECT_TRUE(trainers_[0]->fenced.Wait());
  EXPECT_FALSE(trainers_[0]->outcome.has_value());
  trainers_[0]->sender->Stop(update_, 0);
  Fence(*inference_[0]);
}

TEST_F(DataPath, LostReceiverIsThePathsFailure) {
  const std::vector<TensorInfo> model = {{"w", DType::kU64, {1 << 20}}};
  Weights trainer(model, test::Cut::kWhole, 0, 1), sink(model, test::Cut::kWhole, 0, 1);
  Build({trainer.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  Open(*inference_[0]);
  inference_[0]->endpoint.reset();
  Send(0);
  ASSERT_TRUE(trainers_[0]->ended.Wait());
  EXPECT_FALSE(trainers_[0]->outcome->status.ok());
  EXPECT_TRUE(trainers_[0]->outcome->path);
  EXPECT_TRUE(trainers_[0]->fenced.Wait());
}

TEST_F(DataPath, SourceWhoseConnectionEndedIsNamed) {
  const auto model = test::SmallModel(DType::kU64);
  Weights t0(model, test::Cut::kRows, 0, 2), t1(model, test::Cut::kRows, 1, 2),
      sink(model, test::Cut::kWhole, 0, 1);
  Build({t0.shards(), t1.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  const auto& side = *inference_[0];
  auto connection = side.endpoint->Find(side.plan->sources[1].incarnation);
  ASSERT_TRUE(connection.has_value());
  connection->Close();
  uint32_t refused = 0;
  const auto opened = GrantSet::Open(*side.endpoint, side.plan, /*part=*/0, {}, [] {}, &refused);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(refused, side.plan->sources[1].source);
  EXPECT_THAT(opened.status().message(), HasSubstr("trainer 1"));
}

TEST_F(DataPath, RevokedGrantRefusesWrites) {
  const auto model = test::SmallModel(DType::kU64);
  Weights trainer(model, test::Cut::kWhole, 0, 1), sink(model, test::Cut::kWhole, 0, 1);
  trainer.Fill(1);
  sink.Fill(0);
  Build({trainer.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  Open(*inference_[0]);
  Fence(*inference_[0]);
  Send(0);
  ASSERT_TRUE(trainers_[0]->ended.Wait());
  EXPECT_EQ(trainers_[0]->outcome->status.code(), Code::kFenced) << trainers_[0]->outcome->status.ToString();
  EXPECT_EQ(sink.Wrong(0), 0) << "a byte landed after the fence";
}

TEST_F(DataPath, ASourceMayWriteItsRoutesAlone) {
  ASSERT_TRUE(settings_.Set("transport", "tcp").ok());
  const std::vector<TensorInfo> model = {{"matrix", DType::kF32, {6, 10}}, {"bias", DType::kF32, {5}}};
  Weights first(model, test::Cut::kColumns, 0, 2), second(model, test::Cut::kColumns, 1, 2);
  Weights sink(model, test::Cut::kWhole, 0, 1);
  for (Weights* trainer : {&first, &second}) trainer->Fill(1);
  sink.Fill(0);
  Build({first.shards(), second.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  auto& side = *inference_[0];
  uint64_t opened = 0;
  for (size_t source = 0; source < 2; ++source) {
    uint64_t bytes = 0;
    for (const GrantRange& range : side.plan->sources[source].ranges.at(0))
      bytes += range.first.length() * range.count;
    EXPECT_EQ(static_cast<int64_t>(bytes),
              side.plan->batches[source].BytesOf({0, side.plan->batches[source].transfers()}));
    opened += bytes;
  }
  EXPECT_EQ(opened, sink.bytes());

  Open(side);
  // The first trainer's grant, and everywhere what the second one sends.
  auto& liar = *trainers_[0];
  const SendTarget& target = liar.plan->targets[0];
  Connection connection = target.connection;
  const GrantName grant{side.grants->grants()[0].slot, side.grants->grants()[0].id};
  auto buffer = *Allocate(4096);
  auto region = liar.endpoint->Register({.address = buffer->bytes().data(), .length = 4096}, Access::kLocal);
  ASSERT_TRUE(region.ok()) << region.status().ToString();
  int refused = 0;
  int written = 0;
  for (const RemoteRegion& remote : target.imported->regions()) {
    for (uint64_t at = 0; at + 4 <= remote.length(); at += 4) {
      const std::vector<Piece> pieces{{.local = *region->Slice(0, 4), .remote = *remote.Slice(at, 4)}};
      auto write = connection.Write(pieces, {.grant = grant});
      ASSERT_TRUE(write.ok());
      const Status status = write->Wait();
      ++(status.ok() ? written : refused);
      if (!status.ok()) {
        ASSERT_EQ(status.code(), Code::kPermission) << status.ToString();
      }
    }
  }
  EXPECT_EQ(written * 4, static_cast<int>(first.bytes()));
  EXPECT_EQ(refused * 4, static_cast<int>(second.bytes()));
  // Both send what is theirs, and it is whole.
  Send(0);
  ASSERT_TRUE(side.complete.Wait());
  Fence(side);
  EXPECT_EQ(sink.Wrong(1), 0);
}

TEST_F(DataPath, StagingLimitThatIsTooLowNamesTheTensor) {
  settings_.staging = 1 << 20;
  const std::vector<TensorInfo> wide = {{"wide.one", DType::kF32, {8}}};
  const std::vector<TensorInfo> narrow = {{"wide.one", DType::kBF16, {8}}};
  Weights trainer(wide, test::Cut::kWhole, 0, 1), sink(narrow, test::Cut::kWhole, 0, 1);
  Build({trainer.shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  const Status status = trainers_[0]->sender->CheckStaging(*trainers_[0]->plan);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("wide.one"));
}

/// Shards of an engine of two ranks: [q_r; k_r; v_r] of a fused tensor, a scalar at two places of rank 0, a
/// matrix whole and at two places of rank 1.
std::vector<Weights> SeveralEach(DType dtype) {
  const TensorInfo fused{"qkv", dtype, {640, 96}};
  const TensorInfo scale{"scale", dtype, {}};
  const TensorInfo tied{"embed", dtype, {300, 96}};
  const auto rows = [&](int64_t first, int64_t count) {
    return std::pair(fused, Box{{first, 0}, {count, 96}});
  };
  const std::pair one(scale, Box{});
  const std::pair whole(tied, WholeOf(tied.shape));
  std::vector<Weights> ranks;
  ranks.emplace_back(std::vector{rows(576, 32), one, rows(0, 256), one, whole, rows(512, 32)});
  ranks.emplace_back(std::vector{rows(256, 256), whole, rows(544, 32), whole, one, rows(608, 32)});
  return ranks;
}

TEST_F(DataPath, FillsEveryShardOfATensor) {
  const std::vector<TensorInfo> model{
      {"qkv", DType::kF32, {640, 96}}, {"scale", DType::kF32, {}}, {"embed", DType::kF32, {300, 96}}};
  for (const char* transport : {"tcp", "shm"}) {
    for (const auto& [dtype, mode] :
         {std::pair(DType::kF32, LandingMode::kInPlace), std::pair(DType::kBF16, LandingMode::kShadow)}) {
      SCOPED_TRACE(transport);
      settings_.transport = transport;
      settings_.checksum = 1;
      trainers_.clear();
      inference_.clear();
      Weights t0(model, test::Cut::kRows, 0, 2), t1(model, test::Cut::kRows, 1, 2);
      auto sinks = SeveralEach(dtype);
      t0.Fill(5);
      t1.Fill(5);
      Build({t0.shards(), t1.shards()}, {sinks[0].shards(), sinks[1].shards()}, mode);
      ASSERT_FALSE(HasFatalFailure());
      Run();
      for (size_t rank = 0; rank < 2; ++rank) {
        EXPECT_TRUE(inference_[rank]->memory->CopyToLive().ok());
        EXPECT_EQ(sinks[rank].Wrong(5), 0) << rank;
        EXPECT_EQ(inference_[rank]->grants->bytes(), sinks[rank].bytes());
        EXPECT_EQ(inference_[rank]->grants->Verify().ToString(), "ok");
      }
    }
  }
}

TEST_F(DataPath, SendsSeveralShardsOfATensorOfWhichSomeAreNotContiguous) {
  auto trainers = SeveralEach(DType::kF32);
  const std::vector<TensorInfo> model{
      {"qkv", DType::kBF16, {640, 96}}, {"scale", DType::kBF16, {}}, {"embed", DType::kBF16, {300, 96}}};
  Weights sink(model, test::Cut::kWhole, 0, 1);
  for (Weights& trainer : trainers) trainer.Fill(3);
  auto strided = trainers[0].shards();
  // Rank 0's q: columns of a wider matrix. Of its equal shards of `scale` either will do.
  std::vector<float> wide(256 * 100);
  const auto* values = reinterpret_cast<const float*>(strided[2].memory.address);
  for (size_t i = 0; i < 256; ++i) std::copy_n(values + i * 96, 96, wide.begin() + i * 100 + 4);
  strided[2].memory = HostMemory(std::as_writable_bytes(std::span(wide)));
  strided[2].offset = 4 * sizeof(float);
  strided[2].strides = {100, 1};
  Build({strided, trainers[1].shards()}, {sink.shards()});
  ASSERT_FALSE(HasFatalFailure());
  Run();
  EXPECT_EQ(sink.Wrong(3), 0);
}

TEST_F(DataPath, TheSameShardsInAnotherOrderAreTheSameMemory) {
  const auto endpoint = MakeEndpoint(settings_, "inference", 0);
  const auto ranks = SeveralEach(DType::kF32);
  const auto shards = ranks[0].shards();
  const auto memory = LandingMemory::Register(*endpoint, shards, LandingMode::kInPlace);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_THAT((*memory)->Describe(),
              testing::ElementsAre("qkv: in_place", "scale: in_place", "embed: in_place"));
  EXPECT_TRUE((*memory)->SameMemory(shards));
  EXPECT_TRUE((*memory)->SameMemory({shards.rbegin(), shards.rend()}));
  const auto with = [&](const std::function<void(std::vector<Shard>&)>& change) {
    auto changed = shards;
    change(changed);
    return (*memory)->SameMemory(changed);
  };
  EXPECT_FALSE(with([](auto& changed) { changed[1].memory = changed[3].memory; })) << "one copy fewer";
  EXPECT_FALSE(with([](auto& changed) { std::swap(changed[0].memory, changed[5].memory); }));
  EXPECT_FALSE(with([](auto& changed) { changed.pop_back(); }));
  // Each place has a name of its own, the same whatever the order.
  std::set<uint64_t> keys;
  for (const auto& place : (*memory)->Map().places) keys.insert(place.shard);
  EXPECT_EQ(keys.size(), shards.size());
}

TEST_F(DataPath, BadShardsAreNamed) {
  const auto endpoint = MakeEndpoint(settings_, "inference", 3);
  std::vector<float> memory(12);
  Shard shard;
  shard.tensor = {"a.b", DType::kF32, {3, 4}};
  shard.part = WholeOf({3, 4});
  shard.memory = HostMemory(std::as_writable_bytes(std::span(memory)));
  const auto refused = [&](const std::vector<Shard>& shards) {
    const auto registered = LandingMemory::Register(*endpoint, shards, LandingMode::kInPlace);
    EXPECT_FALSE(registered.ok());
    return registered.ok() ? std::string() : registered.status().message();
  };
  EXPECT_THAT(refused({}), HasSubstr("no shards"));
  Shard top = shard;
  top.part = Box{{0, 0}, {2, 4}};
  EXPECT_EQ(refused({shard, top}),
            "tensor 'a.b': the boxes [0:2, 0:4] and [0:3, 0:4] of rank 3 overlap; give shards of one "
            "tensor that are equal or disjoint");
  top.declared = true;
  EXPECT_THAT(refused({shard, top}), HasSubstr("some shards of rank 3 are declared"));
  Shard strided = shard;
  strided.strides = {1, 3};
  EXPECT_THAT(refused({strided}), HasSubstr("a.b is not contiguous"));
  Shard null = shard;
  null.memory.address = nullptr;
  EXPECT_THAT(refused({null}), HasSubstr("a.b has no memory"));
  Shard outside = shard;
  std::get<Box>(outside.part).offset = {1, 0};
  EXPECT_THAT(refused({outside}), HasSubstr("a.b"));
  Shard declared = shard;
  declared.declared = true;
  declared.memory = {};
  EXPECT_TRUE(LandingMemory::Register(*endpoint, {declared}, LandingMode::kInPlace).ok());
}

}  // namespace
}  // namespace weightcast::worker
