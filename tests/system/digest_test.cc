#include "weightcast/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "system/jobs.h"

// Both sides of an update prove that they hold the same weights.
namespace weightcast::test {
namespace {

using testing::HasSubstr;

using Values = std::map<std::string, TensorDigest>;

/// Two trainers that hold rows, and an engine of two ranks that hold columns.
class DigestTest : public Job, public testing::TestWithParam<LandingMode> {
 protected:
  void SetUp() override {
    settings_["transport"] = "shm";
    StartController();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      trainers_.push_back(ConnectTrainer(rank, 2));
      engine_.push_back(ConnectEngine("e", rank, 2));
      rows_.emplace_back(SmallModel(DType::kBF16), Cut::kRows, rank, 2);
      columns_.emplace_back(SmallModel(DType::kBF16), Cut::kColumns, rank, 2);
      ASSERT_TRUE(trainers_[rank] && engine_[rank]);
    }
  }
  void Register(LandingMode landing) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(trainers_[rank]->Register({.shards = rows_[rank].shards()}).ok());
      ASSERT_TRUE(engine_[rank]->Register({.shards = columns_[rank].shards()}, {.landing = landing}).ok());
    }
  }
  /// Publishes it at both trainers and waits for it at both ranks.
  void Update(int64_t version) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      rows_[rank].Fill(version);
      ASSERT_TRUE(trainers_[rank]->Publish(version).ok());
    }
    std::vector<std::thread> threads;
    for (auto& rank : engine_) {
      threads.emplace_back([&rank, version] {
        const auto served = rank->Wait(rank->version(), In(60));
        EXPECT_TRUE(served.ok() && served->number == version) << served.status().ToString();
      });
    }
    for (auto& thread : threads) thread.join();
  }
  /// Of all ranks of a side together.
  template <typename Workers>
  static Values ValuesOf(const Workers& workers) {
    std::vector<Digests> ranks;
    for (const auto& worker : workers) {
      auto digests = worker->Digest();
      EXPECT_TRUE(digests.ok()) << digests.status().ToString();
      if (digests.ok()) ranks.push_back(*digests);
    }
    const auto values = CombineDigests(ranks);
    EXPECT_TRUE(values.ok()) << values.status().ToString();
    return values.ok() ? *values : Values{};
  }

  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::vector<std::unique_ptr<Inference>> engine_;
  std::vector<Weights> rows_;
  std::vector<Weights> columns_;
};

TEST_P(DigestTest, OfBothSidesAreEqualAfterEachUpdate) {
  Register(GetParam());
  std::optional<Values> before;
  for (int64_t version = 1; version <= 3; ++version) {
    Update(version);
    const Values sent = ValuesOf(trainers_);
    EXPECT_EQ(sent.size(), SmallModel(DType::kBF16).size());
    EXPECT_EQ(ValuesOf(engine_), sent);
    EXPECT_NE(before, sent);
    before = sent;
  }
}

TEST_P(DigestTest, OneFlippedBitIsFound) {
  Register(GetParam());
  Update(1);
  const Values sent = ValuesOf(trainers_);
  const Shard attn = columns_[1].shards()[2];
  ASSERT_EQ(attn.tensor.name, "layer.0.attn");
  attn.memory.address[attn.memory.length / 2] ^= std::byte{8};
  for (const auto& [name, digest] : ValuesOf(engine_))
    EXPECT_EQ(digest != sent.at(name), name == "layer.0.attn");
}

INSTANTIATE_TEST_SUITE_P(, DigestTest, testing::Values(LandingMode::kInPlace, LandingMode::kShadow),
                         [](const auto& landing) {
                           return landing.param == LandingMode::kShadow ? "shadow" : "in_place";
                         });

using DigestRefused = DigestTest;

TEST_F(DigestRefused, BeforeThereIsAnything) {
  EXPECT_EQ(trainers_[0]->Digest().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(engine_[0]->Digest().status().code(), Code::kInvalidArgument);
  Register(LandingMode::kInPlace);
  EXPECT_TRUE(trainers_[0]->Digest().ok());
  EXPECT_EQ(engine_[0]->Digest().status().code(), Code::kUnavailable);
  trainers_[0]->Close();
  engine_[0]->Close();
  EXPECT_EQ(trainers_[0]->Digest().status().code(), Code::kCancelled);
  EXPECT_EQ(engine_[0]->Digest().status().code(), Code::kCancelled);
}

TEST_F(DigestRefused, WhereBytesMayLand) {
  Register(LandingMode::kInPlace);
  Update(1);
  for (auto& rank : engine_) ASSERT_TRUE(rank->Begin().ok());
  const Status status = engine_[0]->Digest().status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("call digest after finish or abort"));
  for (auto& rank : engine_) ASSERT_TRUE(rank->Abort().ok());
  EXPECT_EQ(ValuesOf(engine_), ValuesOf(trainers_));
}

TEST_F(DigestRefused, InsideAnotherCall) {
  Status status;
  const auto from_another_thread = [&](const Version&) {
    std::thread([&] { status = engine_[0]->Digest().status(); }).join();
    return Status::Ok();
  };
  Register(LandingMode::kShadow);
  ASSERT_TRUE(engine_[0]
                  ->Register({.shards = columns_[0].shards()},
                             {.landing = LandingMode::kShadow, .on_switch = from_another_thread})
                  .ok());
  Update(1);
  EXPECT_THAT(status.message(), HasSubstr("another thread"));
}

TEST_F(DigestRefused, WhereALoaderLands) {
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(trainers_[rank]->Register({.shards = rows_[rank].shards()}).ok());
    ASSERT_TRUE(engine_[rank]
                    ->Register({.shards = columns_[rank].shards()},
                               {.landing = LandingMode::kLoader,
                                .on_switch = [](const Version&) { return Status::Ok(); }})
                    .ok());
  }
  Update(1);
  EXPECT_THAT(engine_[0]->Digest().status().message(),
              HasSubstr("with landing 'loader' the registered memory"));
}

/// Strided shards, equal ones, and one that is only declared.
TEST_F(DigestTest, TrainersHoldShardsOfEveryKind) {
  const TensorInfo tensor{.name = "w", .dtype = DType::kF32, .shape = {4, 6}};
  std::vector<float> rows(24);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  std::vector<float> columns(24);
  for (size_t i = 0; i < rows.size(); ++i) columns[i % 6 * 4 + i / 6] = rows[i];
  const auto memory = [](std::vector<float>& of) {
    return HostMemory(std::as_writable_bytes(std::span(of)));
  };
  const Box whole = WholeOf(tensor.shape);
  const Shard dense{.tensor = tensor, .part = whole, .memory = memory(rows)};
  const Shard strided{.tensor = tensor, .part = whole, .memory = memory(columns), .strides = {1, 4}};
  const Shard lower{.tensor = tensor, .part = Box{{2, 0}, {2, 6}}, .memory = memory(rows), .offset = 48};
  const Shard declared{.tensor = {"unsent", DType::kF32, {3}}, .part = WholeOf({3}), .declared = true};
  ASSERT_TRUE(trainers_[0]->Register({.shards = {dense, strided, declared}}).ok());
  const auto both = trainers_[0]->Digest();
  ASSERT_TRUE(both.ok()) << both.status().ToString();
  ASSERT_EQ(both->size(), 2U);
  EXPECT_EQ((*both)[0].digest, (*both)[1].digest);
  const Shard upper{
      .tensor = tensor, .part = Box{{0, 0}, {2, 6}}, .memory = memory(columns), .strides = {1, 4}};
  ASSERT_TRUE(trainers_[1]->Register({.shards = {lower, upper}}).ok());
  const auto halves = trainers_[1]->Digest();
  ASSERT_TRUE(halves.ok()) << halves.status().ToString();
  EXPECT_EQ(CombineDigests(std::vector<Digests>{*halves})->at("w"), (*both)[0].digest);
}

/// As files would give them.
class Reader final : public ShardReader {
 public:
  explicit Reader(const Weights& weights) : weights_(weights) {}
  Status Read(size_t shard, uint64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), weights_.shards()[shard].memory.address + offset, out.size());
    return Status::Ok();
  }
  Status Check() override { return check; }
  Status check;

 private:
  const Weights& weights_;
};

TEST_F(DigestTest, ReadersGiveTheBytes) {
  Weights whole(SmallModel(DType::kBF16), Cut::kWhole, 0, 1);
  whole.Fill(1);
  ASSERT_TRUE(trainers_[0]->Register({.shards = whole.shards()}).ok());
  std::vector<Shard> shards = whole.shards();
  for (Shard& shard : shards) shard.memory = {};
  const auto reader = std::make_shared<Reader>(whole);
  ASSERT_TRUE(trainers_[1]->Register({.shards = shards}, {.reader = reader}).ok());
  const auto read = trainers_[1]->Digest();
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, *trainers_[0]->Digest());
  reader->check = {Code::kCorrupt, "the file has changed"};
  EXPECT_EQ(trainers_[1]->Digest().status(), reader->check);
}

TEST_F(DigestTest, CanBeInterrupted) {
  std::atomic<bool> interrupt{false};
  WorkerOptions options = Options(0, 1);
  options.model = "other";
  options.interrupted = [&] { return interrupt.load(); };
  const auto trainer = Trainer::Connect(options);
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  ASSERT_TRUE((*trainer)->Register({.shards = rows_[0].shards()}).ok());
  EXPECT_TRUE((*trainer)->Digest().ok());
  interrupt = true;
  EXPECT_EQ((*trainer)->Digest().status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace weightcast::test
