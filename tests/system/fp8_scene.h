#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "fp8_reference.h"
#include "weightcast/worker.h"

/// Trainers and engines of which a weight becomes FP8 on the way, as threads of one process.
namespace weightcast::test {

/// Where tensors lie.
struct Fp8Memory {
  std::function<Memory(size_t)> allocate;  ///< Stays for as long as the scene.
  std::function<void(const Memory&, std::span<const std::byte>)> write;
  std::function<void(const Memory&, std::span<std::byte>)> read;
};

/// In host memory.
class Fp8HostMemory {
 public:
  Fp8Memory Calls() {
    return {
        .allocate =
            [this](size_t bytes) {
              blocks_.push_back(std::make_unique<std::vector<std::byte>>(bytes));
              return HostMemory(*blocks_.back());
            },
        .write = [](const Memory& to, auto bytes) { std::memcpy(to.address, bytes.data(), bytes.size()); },
        .read = [](const Memory& from,
                   auto bytes) { std::memcpy(bytes.data(), from.address, bytes.size()); }};
  }

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> blocks_;
};

/// Who holds what.
struct Fp8Scene {
  enum class Rows : uint8_t { kDense, kPadded, kTransposed };
  Shape shape;
  DType dtype = DType::kBF16;
  std::vector<std::vector<Box>> trainers;  ///< Per rank the boxes of the weight.
  std::vector<std::vector<Box>> values;    ///< Per rank of an engine.
  std::vector<std::vector<Box>> scales;    ///< Likewise, of the scales.
  uint32_t engines = 1;
  Rows rows = Rows::kDense;  ///< At the trainers.
  LandingMode landing = LandingMode::kInPlace;
  int64_t versions = 2;
  bool reads = false;  ///< Trainers have a reader, and no memory; dense rows in host memory.
};

inline NameRules Fp8Rules() {
  return {{Quantise{.from = "model.{**}.weight", .to = "{**}.weight", .scales = "{**}.weight_scale_inv"},
           Rename{"model.{**}", "{**}"}}};
}

/// Gives the bytes of memory, as files would.
class Fp8Reader final : public ShardReader {
 public:
  explicit Fp8Reader(std::vector<Memory> shards) : shards_(std::move(shards)) {}
  Status Read(size_t shard, uint64_t offset, std::span<std::byte> out) override {
    if (offset + out.size() > shards_.at(shard).length)
      return {Code::kInvalidArgument, "read behind the end of a shard"};
    std::memcpy(out.data(), shards_[shard].address + offset, out.size());
    return Status::Ok();
  }
  Status Check() override { return Status::Ok(); }

 private:
  const std::vector<Memory> shards_;
};

/// Moves the versions and compares all bytes with the reference.
class Fp8Run {
 public:
  Fp8Run(Fp8Scene scene, WorkerOptions base, Fp8Memory memory)
      : scene_(std::move(scene)), base_(std::move(base)), memory_(std::move(memory)) {}

  void Go() {
    for (uint32_t rank = 0; rank < scene_.trainers.size(); ++rank) AddTrainer(rank);
    for (uint32_t engine = 0; engine < scene_.engines; ++engine)
      for (uint32_t rank = 0; rank < scene_.values.size(); ++rank) AddRank(engine, rank);
    for (int64_t version = 1; version <= scene_.versions && !::testing::Test::HasFailure(); ++version)
      Move(version);
    for (auto& rank : ranks_) rank.worker->Close();
    for (auto& trainer : trainers_) trainer.worker->Close();
  }

 private:
  struct Held {
    Box box;
    Memory memory;
  };
  struct TrainerSide {
    std::unique_ptr<Trainer> worker;
    std::vector<Held> weight;
  };
  struct RankSide {
    std::unique_ptr<Inference> worker;
    std::vector<Held> values;
    std::vector<Held> scales;
  };

  [[nodiscard]] Fp8Tensor TensorOf(int64_t version) const {
    return {scene_.shape[0], scene_.shape[1], scene_.dtype, static_cast<uint32_t>(version + 4)};
  }
  [[nodiscard]] Shape ScalesShape() const {
    return {(scene_.shape[0] + 127) / 128, (scene_.shape[1] + 127) / 128};
  }
  [[nodiscard]] std::vector<int64_t> Strides(const Box& box) const {
    if (scene_.rows == Fp8Scene::Rows::kTransposed) return {1, box.size[0]};
    return {box.size[1] + (scene_.rows == Fp8Scene::Rows::kPadded ? 4 : 0), 1};
  }
  [[nodiscard]] WorkerOptions OptionsOf(uint32_t rank, size_t ranks, std::string engine = "") const {
    WorkerOptions options = base_;
    options.rank = rank;
    options.world_size = static_cast<uint32_t>(ranks);
    options.engine = std::move(engine);
    options.settings["compare"] = "1";
    return options;
  }

  void AddTrainer(uint32_t rank) {
    TrainerSide side;
    auto worker = Trainer::Connect(OptionsOf(rank, scene_.trainers.size()));
    ASSERT_TRUE(worker.ok()) << worker.status().ToString();
    side.worker = std::move(*worker);
    Registration registration;
    for (const Box& box : scene_.trainers[rank]) {
      const auto strides = Strides(box);
      const int64_t reach = (box.size[0] - 1) * strides[0] + (box.size[1] - 1) * strides[1] + 1;
      side.weight.push_back({box, memory_.allocate(static_cast<size_t>(reach * BitsOf(scene_.dtype) / 8))});
      registration.shards.push_back({.tensor = {"model.a.weight", scene_.dtype, scene_.shape},
                                     .part = box,
                                     .memory = side.weight.back().memory,
                                     .strides = strides});
    }
    registration.shards.push_back({.tensor = {"model.norm", DType::kF32, {100}},
                                   .part = WholeOf({100}),
                                   .memory = memory_.allocate(400)});
    SourceOptions options{.rules = Fp8Rules()};
    if (scene_.reads) {
      std::vector<Memory> memories;
      for (Shard& shard : registration.shards) {
        memories.push_back(std::exchange(shard.memory, {}));
        shard.strides.clear();
      }
      options.reader = std::make_shared<Fp8Reader>(std::move(memories));
    }
    const Status status = side.worker->Register(std::move(registration), std::move(options));
    ASSERT_TRUE(status.ok()) << status.ToString();
    trainers_.push_back(std::move(side));
  }

  void AddRank(uint32_t engine, uint32_t rank) {
    RankSide side;
    auto worker = Inference::Connect(OptionsOf(rank, scene_.values.size(), StrCat("engine", engine)));
    ASSERT_TRUE(worker.ok()) << worker.status().ToString();
    side.worker = std::move(*worker);
    Registration registration;
    const auto add = [&](const TensorInfo& tensor, const std::vector<Box>& boxes, std::vector<Held>& held) {
      for (const Box& box : boxes) {
        held.push_back(
            {box, memory_.allocate(static_cast<size_t>(BytesOf(tensor.dtype, ElementsOf(box.size))))});
        registration.shards.push_back({.tensor = tensor, .part = box, .memory = held.back().memory});
      }
    };
    std::vector<Held> norm;
    add({"a.weight", DType::kF8E4M3, scene_.shape}, scene_.values[rank], side.values);
    add({"a.weight_scale_inv", DType::kF32, ScalesShape()}, scene_.scales[rank], side.scales);
    add({"norm", DType::kF32, {100}}, {WholeOf({100})}, norm);
    const Status status = side.worker->Register(std::move(registration), {.landing = scene_.landing});
    ASSERT_TRUE(status.ok()) << status.ToString();
    ranks_.push_back(std::move(side));
  }

  void Move(int64_t version) {
    const Fp8Tensor tensor = TensorOf(version);
    for (const auto& trainer : trainers_) {
      for (const Held& held : trainer.weight) {
        const auto strides = Strides(held.box);
        memory_.write(held.memory, tensor.Source(held.box, strides[0], strides[1]));
      }
    }
    std::vector<std::shared_ptr<Update>> updates;
    for (auto& trainer : trainers_) {
      auto update = trainer.worker->Publish(version);
      ASSERT_TRUE(update.ok()) << update.status().ToString();
      updates.push_back(*update);
    }
    std::vector<Status> outcomes(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks_.size(); ++i)
      threads.emplace_back(
          [&, i] { outcomes[i] = ranks_[i].worker->Wait(ranks_[i].worker->version(), In(120)).status(); });
    for (auto& thread : threads) thread.join();
    for (const Status& status : outcomes) ASSERT_TRUE(status.ok()) << status.ToString();
    const auto stats = updates[0]->Wait(In(60));
    ASSERT_TRUE(stats.ok()) << stats.status().ToString();
    for (const RankStats& rank : stats->receivers) EXPECT_GE(rank.compared, 3U) << rank.name;
    for (const auto& rank : ranks_) {
      for (const Held& held : rank.values) Expect(held, tensor.Values(held.box), "values");
      for (const Held& held : rank.scales) Expect(held, tensor.Scales(held.box), "scales");
    }
  }

  void Expect(const Held& held, const std::vector<std::byte>& expected, const char* what) const {
    std::vector<std::byte> landed(expected.size());
    memory_.read(held.memory, landed);
    EXPECT_TRUE(landed == expected) << what << " " << ToString(held.box);
  }

  const Fp8Scene scene_;
  const WorkerOptions base_;
  const Fp8Memory memory_;
  std::vector<TrainerSide> trainers_;
  std::vector<RankSide> ranks_;
};

/// `parts` boxes of blocks that cut a matrix along a dimension; fewer where it has fewer blocks.
inline std::vector<Box> CutAtBlocks(const Shape& shape, size_t dim, int64_t parts, int64_t block = 128) {
  std::vector<Box> boxes;
  const int64_t blocks = (shape[dim] + block - 1) / block;
  for (int64_t part = 0; part < std::min(parts, blocks); ++part) {
    const int64_t first = blocks * part / std::min(parts, blocks) * block;
    const int64_t end = std::min(blocks * (part + 1) / std::min(parts, blocks) * block, shape[dim]);
    Box box = WholeOf(shape);
    box.offset[dim] = first;
    box.size[dim] = end - first;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

/// Random shapes, shards on both sides and strides.
inline Fp8Scene RandomFp8Scene(uint32_t seed) {
  std::mt19937 random(seed);
  constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  Fp8Scene scene;
  scene.shape = {static_cast<int64_t>(1 + random() % 700), static_cast<int64_t>(1 + random() % 700)};
  scene.dtype = kDTypes[seed % 3];
  scene.rows = static_cast<Fp8Scene::Rows>(random() % 3);
  scene.landing = random() % 2 == 0 ? LandingMode::kInPlace : LandingMode::kShadow;
  scene.engines = 1 + random() % 2;
  const size_t trainer_dim = random() % 2;
  for (const Box& box : CutAtBlocks(scene.shape, trainer_dim, static_cast<int64_t>(1 + random() % 3)))
    scene.trainers.push_back({box});
  if (random() % 3 == 0) scene.trainers.push_back(scene.trainers.front());  // A replica.
  const size_t engine_dim = random() % 2;
  for (const Box& box : CutAtBlocks(scene.shape, engine_dim, static_cast<int64_t>(1 + random() % 2))) {
    scene.values.push_back({box});
    const Box own{{box.offset[0] / 128, box.offset[1] / 128},
                  {(box.size[0] + 127) / 128, (box.size[1] + 127) / 128}};
    const Box all = WholeOf({(scene.shape[0] + 127) / 128, (scene.shape[1] + 127) / 128});
    scene.scales.push_back({seed % 2 == 0 ? own : all});
  }
  return scene;
}

}  // namespace weightcast::test
